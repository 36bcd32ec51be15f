"""An environment of PettingZoo whose agents act in turn."""

from __future__ import annotations

import functools

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv

MOST = 3  # stones that an agent can take


class Nim(AECEnv):
    """A pile of `stones`; `ann` and `bob` take 1 to 3 of them in turn, and who takes the last one has won.

    With `kind` truncated, the last stone truncates the episode. `bob` gets 1/4 for each action of `ann`.
    """

    metadata = {"name": "nim_v0", "is_parallelizable": False}

    def __init__(self, stones=7, kind="terminated", render_mode=None):
        super().__init__()
        self.stones, self.kind, self.render_mode = stones, kind, render_mode
        self.possible_agents = ["ann", "bob"]
        self.closed = 0

    @functools.cache  # noqa: B019
    def observation_space(self, agent):
        return spaces.Dict(
            {"observation": spaces.Box(0, 99, (2,), np.float32), "action_mask": spaces.MultiBinary(MOST)}
        )

    @functools.cache  # noqa: B019
    def action_space(self, agent):
        return spaces.Discrete(MOST)

    def observe(self, agent):
        mask = np.arange(1, MOST + 1) <= self.left
        return {"observation": np.array([self.left, self.seed], np.float32), "action_mask": mask.astype(np.int8)}

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        self.seed, self.left = (seed or 0) % 100, self.stones
        self.rewards, self._cumulative_rewards = dict.fromkeys(self.agents, 0), dict.fromkeys(self.agents, 0)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}
        self.agent_selection = "ann"

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self.left = max(0, self.left - int(action) - 1)
        self._cumulative_rewards[agent] = 0
        other = "bob" if agent == "ann" else "ann"
        self.rewards = {agent: 0, other: 0.25 * (other == "bob")}
        if self.left == 0:
            self.rewards = {agent: 1, other: -1}
            ends = self.terminations if self.kind == "terminated" else self.truncations
            ends |= dict.fromkeys(ends, True)
        self.agent_selection = other
        self._accumulate_rewards()

    def close(self):
        self.closed += 1
