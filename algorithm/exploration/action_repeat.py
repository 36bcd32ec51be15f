"""Exploration by repeated actions, with a different probability of repetition in each lane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from algorithm.agents.agent import Agent
from algorithm.exploration.lane_levels import LaneLevels
from algorithm.rollout import Decision, Step
from algorithm.specs import Role


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

    def grow(self, lanes: int, initial_lanes: int) -> None:
        super().grow(lanes, initial_lanes)
        self.previous = np.pad(self.previous, ((0, lanes - len(self.previous)), (0, 0)))

    def select_lanes(self, lanes: Sequence[int]) -> None:
        super().select_lanes(lanes)
        self.previous = self.previous[list(lanes)]

    def state(self) -> dict[str, Any]:
        return {"previous": self.previous.tolist()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.previous = np.array(state["previous"], np.int64).reshape(self.previous.shape)

    def act(self, agent: Agent, step: Step, memory: np.ndarray) -> Decision:
        decision, family = agent.act(step, memory), agent.family
        level = np.where(step.first, 0, self.lane_levels[step.lane]).astype(np.float32)
        switching = family.with_noise(decision.behavior, level)
        behavior = family.with_repetition(switching, self.previous[step.lane], level)
        sample = family.sample(behavior, agent.rng)
        self.previous[step.lane] = sample
        return Decision(raw_action=sample, action=family.to_action(sample), behavior=behavior, memory=decision.memory)
