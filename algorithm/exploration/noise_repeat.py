"""Exploration by repeated noise: the random part of continuous actions stays the same for several steps."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from algorithm.agents.agent import Agent
from algorithm.exploration.explorer import Explorer, Novelty, check_count, decide
from algorithm.rollout import Decision, Step
from algorithm.specs import Role


class NoiseRepeat(Explorer):
    """An explorer that holds the noise of continuous actions for a random number of steps (FlashSAC, arXiv 2604.04539).

    A continuous action, before clipping or squashing, is mean + std * noise, with mean and std of the policy at each
    step and standard normal noise that a lane holds for n steps: P(n) is proportional to 1 / n^2, for n up to a limit
    (Zeta(2), truncated). At the start of an episode the noise is drawn again. Discrete branches are drawn at each step.

    Each single action has the distribution of the policy, whose statistics are stored. Given the previous actions of
    its lane it has another one, so that importance ratios of the stored statistics would be wrong.

    Args:
        role: The role, whose actions have continuous dimensions.
        max_repeat: The largest n, at least 1; 1: the noise is drawn at each step, as without this explorer.

    Raises:
        ValueError: Invalid `max_repeat`, or no continuous dimensions.
    """

    LANE_ARRAYS = ("noise", "remaining")

    def __init__(self, role: Role, max_repeat: int = 16):
        check_count("max_repeat", max_repeat)
        if not role.action_spec.continuous:
            raise ValueError("noise_repeat is for continuous actions; for discrete actions there is action_repeat")
        cumulative = np.cumsum(1 / np.arange(1, max_repeat + 1) ** 2)
        self.cumulative_probs = cumulative / cumulative[-1]  # of n = 1, 2, ...
        self.noise = np.zeros((role.lanes, role.action_spec.continuous), np.float32)
        self.remaining = np.zeros(role.lanes, np.int64)  # further steps with the noise of each lane

    def connect(self, agent: Agent, novelties: Mapping[str, Novelty]) -> None:
        if agent.needs_behavior:
            raise ValueError(
                "importance ratios are not supported, since the density of an action, given the previous actions, is "
                "not the policy's; use SAC with n_step: 1 or use_n_step_is: false"
            )

    def act(self, agent: Agent, step: Step, memory: np.ndarray) -> Decision:
        decision = agent.act(step, memory)
        self._resample(step.lane[step.first | (self.remaining[step.lane] == 0)], agent.rng)
        self.remaining[step.lane] -= 1
        sample = agent.family.sample(decision.behavior, agent.rng, self.noise[step.lane])
        return decide(agent, sample, decision.behavior, decision.memory)

    def _resample(self, lanes: np.ndarray, rng: np.random.Generator) -> None:
        """Draw the noise of these lanes, and the number of steps for which they hold it."""
        self.noise[lanes] = rng.standard_normal((len(lanes), self.noise.shape[1]), np.float32)
        self.remaining[lanes] = 1 + np.searchsorted(self.cumulative_probs, rng.random(len(lanes)), side="right")
