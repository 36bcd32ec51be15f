"""Exploration by noisy actions, with a different noise level in each lane."""

from __future__ import annotations

import numpy as np

from algorithm.agents.agent import Agent
from algorithm.exploration.lane_levels import LaneLevels
from algorithm.rollout import Decision, Step


class ActionNoise(LaneLevels):
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

    def act(self, agent: Agent, step: Step, memory: np.ndarray) -> Decision:
        decision, family = agent.act(step, memory), agent.family
        behavior = family.with_noise(decision.behavior, self.lane_levels[step.lane])
        sample = family.sample(behavior, agent.rng)
        return Decision(raw_action=sample, action=family.to_action(sample), behavior=behavior, memory=decision.memory)
