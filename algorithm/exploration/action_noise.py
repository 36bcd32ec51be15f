"""Noise around every action, of another level in each lane."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import numpy as np

from algorithm.agents.agent import Agent
from algorithm.exploration.explorer import Explorer
from algorithm.rollout import Decision, Step
from algorithm.specs import Role


class ActionNoise(Explorer):
    """Lane i of n acts with noise of level linspace(*levels, n)[i]; lanes that are added later have levels in between.

    What is executed is drawn from the noisy policy itself, so that its statistics, and every ratio, are exact. Level 0
    is the policy; what a level means is told by `DistributionFamily.noisy`.

    Raises ValueError for levels other than [min, max], at most 1 where there are discrete branches.
    """

    def __init__(self, role: Role, levels: Sequence[float]):
        highest = 1 if role.action_spec.branches else np.inf
        if not (_is_number_pair(levels) and 0 <= levels[0] <= levels[1] <= highest):
            bound = " <= 1, since it is the probability of a random action" if role.action_spec.branches else ""
            raise ValueError(f"levels are {levels!r}; they must be two numbers [min, max] with 0 <= min <= max{bound}")
        self.levels = levels
        self.lane_levels = np.linspace(*levels, role.lanes, dtype=np.float32)

    def grow(self, lanes: int, initial_lanes: int) -> None:
        lowest, highest = self.levels
        added = lowest + (highest - lowest) * _van_der_corput(lanes - initial_lanes)
        self.lane_levels = np.append(np.linspace(*self.levels, initial_lanes), added).astype(np.float32)

    def act(self, agent: Agent, step: Step, memory: np.ndarray) -> Decision:
        decision, family = agent.act(step, memory), agent.family
        behavior = family.with_noise(decision.behavior, self.lane_levels[step.lane])
        sample = family.sample(behavior, agent.rng)
        return Decision(sample, family.to_action(sample), behavior, decision.memory)


def _van_der_corput(count: int) -> np.ndarray:
    """Return the first numbers of 1/2, 1/4, 3/4, 1/8, 5/8, ... (van der Corput), each far from those before it."""
    return np.array([int(f"{k:b}"[::-1], 2) / 2 ** k.bit_length() for k in range(1, count + 1)])


def _is_number_pair(levels: object) -> bool:
    pair = levels if isinstance(levels, list | tuple) else ()
    valid = [level for level in pair if isinstance(level, int | float) and not isinstance(level, bool)]
    return len(pair) == len(valid) == 2 and all(map(isfinite, valid))
