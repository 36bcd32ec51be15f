"""An agent without a network, whose statistics are the same in every lane, and the steps in which it acts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from algorithm.rollout import Decision, Step
from tests.builders import make_step


class Fixed:
    """An agent with the same statistics in every lane. Its memory counts steps."""

    needs_behavior = True

    def __init__(self, family, *statistics: float):
        self.family, self.statistics = family, np.array(statistics, np.float32)
        self.rng = np.random.default_rng(0)

    def act(self, step: Step, memory: np.ndarray) -> Decision:
        behavior = np.tile(self.statistics, (len(step.lane), 1))
        sample = self.family.sample(behavior, self.rng)
        return Decision(raw_action=sample, action=self.family.to_action(sample), behavior=behavior, memory=memory + 1)


def step_of(lanes: Sequence[int], first: bool | Sequence[bool] = False) -> Step:
    """Return a step of some lanes, whose observations [n, 3] are 0."""
    return make_step({"obs": np.zeros((len(lanes), 3), np.float32)}, lanes, first)
