"""The seeds of a run, all of which follow from `base_config.seed`."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import torch

TRAINING, EVALUATION, PLAY, COMPONENTS, PROCESS, CONFIRMATION = range(6)  # the purposes of seeds


def draw_seed(sequence: np.random.SeedSequence) -> int:
    """Return the next seed of a sequence, as simulators accept it; every call returns another."""
    return int(sequence.spawn(1)[0].generate_state(1)[0] >> 1)


@dataclass(frozen=True)
class RunSeeds:
    """The independent seeds of a run for different purposes."""

    root: int  # `base_config.seed`
    # The number of a worker, and the number of its replacements; the first has the seeds of a run without workers.
    worker: tuple[int, int] = (0, 0)

    def seed_process(self) -> None:
        """Seed the generators of the process, which simulators, networks and critics may draw from."""
        seed = self.get_seed(PROCESS)
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)

    def get_seed(self, purpose: int, *env_steps: int) -> int:
        """Return the seed of what starts at `env_steps`: TRAINING environments, an EVALUATION or its CONFIRMATION.

        It is the same in a resumed run as in an uninterrupted one.
        """
        return draw_seed(self.make_sequence(purpose, *env_steps))

    def make_component_seeds(self, role: str) -> np.random.SeedSequence:
        """Return the seeds of the components of a role, independent of the order in which roles appear."""
        return self.make_sequence(COMPONENTS, *role.encode())

    def make_sequence(self, *purpose: int) -> np.random.SeedSequence:
        """Return the seeds of a purpose, such as PLAY, or of one of several cases of it."""
        return np.random.SeedSequence([self.root, *purpose], spawn_key=self.worker if any(self.worker) else ())
