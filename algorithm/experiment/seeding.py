"""Every number that is drawn in a run follows from its one seed."""

from __future__ import annotations

import numpy as np

TRAINING, EVALUATION, PLAY, TEAM = range(4)  # purposes with seeds of their own


def seeds(seed: int, *purpose: int) -> np.random.SeedSequence:
    """Independent seeds for each purpose of a run."""
    return np.random.SeedSequence([seed, *purpose])


def draw_seed(sequence: np.random.SeedSequence) -> int:
    """The next seed of a sequence, as simulators take them; every call gives another."""
    return int(sequence.spawn(1)[0].generate_state(1)[0] >> 1)
