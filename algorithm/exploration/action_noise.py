"""Exploration by noisy actions, with a different noise level in each lane."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import numpy as np

from algorithm.agents.agent import Agent
from algorithm.exploration.explorer import Explorer
from algorithm.rollout import Decision, Step
from algorithm.specs import Role


class ActionNoise(Explorer):
    """An explorer that adds noise to the policy: lane i of n has the level linspace(min, max, n)[i].

    Actions are drawn from the noisy policy itself, whose statistics are stored, so importance ratios are exact. Level 0
    is the policy; `DistributionFamily.with_noise` defines the other levels. Lanes that are added later have levels
    between the levels of the others.

    Args:
        role: The role.
        levels: [min, max], the levels of the first and of the last lane; at least 0, and at most 1 if the role has
            discrete actions, for which the level is the probability of a random action.

    Raises:
        ValueError: Invalid levels.
    """

    def __init__(self, role: Role, levels: Sequence[float]):
        highest = 1 if role.action_spec.branches else np.inf
        if not (_is_number_pair(levels) and 0 <= levels[0] <= levels[1] <= highest):
            bound = " <= 1, since it is the probability of a random action" if role.action_spec.branches else ""
            raise ValueError(f"levels are {levels!r}; they must be two numbers [min, max] with 0 <= min <= max{bound}")
        self.lowest, self.highest = levels
        self.lane_levels = np.linspace(self.lowest, self.highest, role.lanes, dtype=np.float32)

    def grow(self, lanes: int, initial_lanes: int) -> None:
        initial = np.linspace(self.lowest, self.highest, initial_lanes)
        added = self.lowest + (self.highest - self.lowest) * _van_der_corput(lanes - initial_lanes)
        self.lane_levels = np.append(initial, added).astype(np.float32)

    def select_lanes(self, lanes: Sequence[int]) -> None:
        self.lane_levels = self.lane_levels[list(lanes)]

    def act(self, agent: Agent, step: Step, memory: np.ndarray) -> Decision:
        decision, family = agent.act(step, memory), agent.family
        behavior = family.with_noise(decision.behavior, self.lane_levels[step.lane])
        sample = family.sample(behavior, agent.rng)
        return Decision(raw_action=sample, action=family.to_action(sample), behavior=behavior, memory=decision.memory)


def _van_der_corput(count: int) -> np.ndarray:
    """Return the first numbers of the van der Corput sequence 1/2, 1/4, 3/4, 1/8, 5/8, ..., which are evenly spread."""
    return np.array([int(f"{k:b}"[::-1], 2) / 2 ** k.bit_length() for k in range(1, count + 1)])


def _is_number_pair(levels: object) -> bool:
    """Return whether `levels` is a list or tuple of two finite numbers."""
    pair = levels if isinstance(levels, list | tuple) else ()
    valid = [level for level in pair if isinstance(level, int | float) and not isinstance(level, bool)]
    return len(pair) == len(valid) == 2 and all(map(isfinite, valid))
