"""A room with a gate, which opens only if a member of the team stays behind."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

MEMBERS = ("scout_0", "scout_1", "scout_2")
STEPS = 10  # of an episode
STAY = 0.01  # reward of each step in the room
WAIT, PULL, LEAVE = range(3)


class Escape(ParallelEnv):
    """Three scouts in a room whose gate is closed. One of them, at random, is next to the lever.

    A scout that pulls is out of the game, and the gate opens if it was the one next to the lever. Scouts that leave
    through the open gate are safe, and each earns 1/2 for all scouts in the room, itself included. In each step a scout
    in the room earns 0.01, so that for its own return it never pulls. A scout observes whether the gate is open,
    whether it is next to the lever, and the share of the steps that are over.
    """

    metadata = {"name": "escape_v0"}
    possible_agents = list(MEMBERS)

    @functools.cache  # noqa: B019
    def observation_space(self, agent: str) -> spaces.Box:
        """Return the observations of a scout."""
        return spaces.Box(0.0, 1.0, (3,), np.float32)

    @functools.cache  # noqa: B019
    def action_space(self, agent: str) -> spaces.Discrete:
        """Return its actions: wait, pull, leave."""
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        """Close the gate, and choose the scout next to the lever."""
        if seed is not None or not hasattr(self, "random"):
            self.random = np.random.default_rng(seed)
        self.agents, self.steps, self.is_open = list(MEMBERS), 0, False
        self.near = MEMBERS[int(self.random.integers(len(MEMBERS)))]
        return self._observe(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[dict, dict, dict, dict, dict]:
        """Let all scouts in the room act."""
        self.steps += 1
        acting = list(self.agents)
        safe = [agent for agent in acting if self.is_open and actions[agent] == LEAVE]
        removed = {*safe, *(agent for agent in acting if actions[agent] == PULL)}
        reward = STAY + 0.5 * len(safe)
        self.is_open |= actions.get(self.near) == PULL
        is_over = self.steps == STEPS
        self.agents = [] if is_over else [agent for agent in acting if agent not in removed]
        terminated = {agent: agent in removed for agent in acting}
        truncated = {agent: is_over and agent not in removed for agent in acting}
        return (
            self._observe(acting),
            dict.fromkeys(acting, reward),
            terminated,
            truncated,
            {agent: {} for agent in acting},
        )

    def _observe(self, agents: list[str]) -> dict[str, np.ndarray]:
        return {agent: np.array([self.is_open, agent == self.near, self.steps / STEPS], np.float32) for agent in agents}


def make() -> Escape:
    """Return the environment."""
    return Escape()


def mean_optimum() -> float:
    """Return the mean return of a scout if the one next to the lever pulls at once, and the others leave together."""
    pulls, leaves = STAY, 2 * STAY + 2 * 0.5
    return (pulls + 2 * leaves) / 3
