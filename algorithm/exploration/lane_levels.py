"""Explorers with a different level of exploration in each lane: noisy actions, and repeated actions."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import ClassVar

import numpy as np

from algorithm.agents.agent import Agent
from algorithm.exploration.explorer import Explorer, decide
from algorithm.rollout import Decision, Step
from algorithm.specs import Role


class LaneLevels(Explorer):
    """An explorer whose levels rise from the first to the last lane, evenly spaced unless a subclass says otherwise.

    Lanes that are added later have levels between the levels of the others.

    Args:
        role: The role.
        levels: [min, max], the levels of the first and of the last lane; at least 0, and at most 1 if the role has
            discrete actions, for which the level is a probability.

    Raises:
        ValueError: Invalid levels.
    """

    PROBABILITY: ClassVar[str] = "a random action"  # event that the level of a discrete action is the probability of

    def __init__(self, role: Role, levels: Sequence[float]):
        highest = 1 if role.action_spec.branches else np.inf
        if not (_is_number_pair(levels) and 0 <= levels[0] <= levels[1] <= highest):
            bound = f" <= 1, since it is the probability of {self.PROBABILITY}" if role.action_spec.branches else ""
            raise ValueError(f"levels are {levels!r}; they must be two numbers [min, max] with 0 <= min <= max{bound}")
        self.lowest, self.highest = levels
        self.lane_levels = self.interpolate(np.linspace(0, 1, role.lanes)).astype(np.float32)

    def grow(self, lanes: int, initial_lanes: int) -> None:
        super().grow(lanes, initial_lanes)
        positions = np.append(np.linspace(0, 1, initial_lanes), _van_der_corput(lanes - initial_lanes))
        self.lane_levels = self.interpolate(positions).astype(np.float32)

    def select_lanes(self, lanes: Sequence[int]) -> None:
        super().select_lanes(lanes)
        self.lane_levels = self.lane_levels[list(lanes)]

    def interpolate(self, position: np.ndarray) -> np.ndarray:
        """Return the levels at positions [n] from 0, the first lane, to 1, the last one."""
        return self.lowest + (self.highest - self.lowest) * position


def _van_der_corput(count: int) -> np.ndarray:
    """Return the first numbers of the van der Corput sequence 1/2, 1/4, 3/4, 1/8, 5/8, ..., which are evenly spread."""
    return np.array([int(f"{k:b}"[::-1], 2) / 2 ** k.bit_length() for k in range(1, count + 1)])


def _is_number_pair(levels: object) -> bool:
    """Return whether `levels` is a list or tuple of two finite numbers."""
    pair = levels if isinstance(levels, list | tuple) else ()
    valid = [level for level in pair if isinstance(level, int | float) and not isinstance(level, bool)]
    return len(pair) == len(valid) == 2 and all(map(isfinite, valid))


class ActionNoise(LaneLevels):
    """An explorer that adds noise to the policy: lane i of n has the level linspace(min, max, n)[i].

    Actions are drawn from the noisy policy itself, whose statistics are stored, so importance ratios are exact. Level 0
    is the policy; `DistributionFamily.with_noise` defines the other levels. Of a discrete action, the level is the
    probability of a random one.
    """

    def act(self, agent: Agent, step: Step, memory: np.ndarray) -> Decision:
        decision, family = agent.act(step, memory), agent.family
        behavior = family.with_noise(decision.behavior, self.lane_levels[step.lane])
        sample = family.sample(behavior, agent.rng)
        return decide(agent, sample, behavior, decision.memory)


class ActionRepeat(LaneLevels):
    """An explorer that repeats actions, as long in a lane as its level p is large.

    Independent random actions cancel each other out; repeated ones reach states that need a long effort in one
    direction (Dabney et al. 2020, arXiv 2006.01782). A lane takes its previous action again with probability p.
    Otherwise it takes a random action with probability p, and the action of the policy with probability 1 - p. The
    distribution of an action given its predecessor, p [a = predecessor] + (1 - p) (p uniform + (1 - p) pi), is stored,
    so that importance ratios are exact. Level 0 is the policy. The first action of an episode is the policy's, and a
    forbidden action is not repeated.

    Args:
        role: The role, whose actions are discrete.
        levels: [min, max], the probabilities of repetition of the first and of the last lane. Between them, the mean
            durations of an action, 1 / (1 - p), are a geometric sequence, since a task needs some multiple of a step.

    Raises:
        ValueError: Invalid levels, or continuous actions.
    """

    LANE_ARRAYS = ("previous",)
    PROBABILITY = "a repetition"

    def __init__(self, role: Role, levels: Sequence[float]):
        if role.action_spec.continuous:
            raise ValueError("action_repeat is for discrete actions; for continuous actions there is action_noise")
        super().__init__(role, levels)
        if self.highest >= 1:
            raise ValueError(f"levels are {levels!r}; they must be below 1, or an action would never end")
        # Indices of the last actions.
        self.previous = np.zeros((role.lanes, len(role.action_spec.branches)), np.int64)

    def interpolate(self, position: np.ndarray) -> np.ndarray:
        return 1 - (1 - self.lowest) ** (1 - position) * (1 - self.highest) ** position

    def act(self, agent: Agent, step: Step, memory: np.ndarray) -> Decision:
        decision, family = agent.act(step, memory), agent.family
        level = np.where(step.first, 0, self.lane_levels[step.lane]).astype(np.float32)
        switching = family.with_noise(decision.behavior, level)
        behavior = family.with_repetition(switching, self.previous[step.lane], level)
        sample = family.sample(behavior, agent.rng)
        self.previous[step.lane] = sample
        return decide(agent, sample, behavior, decision.memory)
