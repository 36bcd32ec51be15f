"""Every number that is drawn in a run follows from its one seed."""

from __future__ import annotations

import random

import numpy as np
import torch

TRAINING, EVALUATION, PLAY, COMPONENTS, PROCESS = range(5)  # purposes with seeds of their own


def make_seed_sequence(seed: int, *purpose: int) -> np.random.SeedSequence:
    """Independent seeds for each purpose of a run."""
    return np.random.SeedSequence([seed, *purpose])


def draw_seed(sequence: np.random.SeedSequence) -> int:
    """The next seed of a sequence, as simulators take them; every call gives another."""
    return int(sequence.spawn(1)[0].generate_state(1)[0] >> 1)


def seed_process(seed: int) -> None:
    """Seed the generators of the process, which critics that sample draw from, and simulators and networks may."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
