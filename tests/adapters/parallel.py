"""An environment of PettingZoo with predictable episodes."""

from __future__ import annotations

import functools

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from tests.adapters.spaced import BRANCHES, allowed

LATE = 2  # step at which `late` joins


class Race(ParallelEnv):
    """An environment of the agents `ant`, `bee` and `late`, which observe the number of steps t.

    Args:
        ant: Step at which the episode of `ant` ends.
        bee: Step at which the episode of `bee` ends.
        late: Step at which the episode of `late`, which joins at step 2, ends; 0 for no such agent.
        kind: How episodes end: terminated or truncated. The reward of a step is t / 8.
        how: Where masks are: none, observed (in the observation) or info.
        silent: Omit the observations of agents whose episode has ended.
        continuous: Give `ant` continuous actions.
        render_mode: As in PettingZoo.
    """

    metadata = {"name": "race_v0"}

    def __init__(
        self, ant=2, bee=5, late=0, kind="terminated", how="none", silent=False, continuous=False, render_mode=None
    ):
        self.lives = {"ant": ant, "bee": bee, **({"late": late} if late else {})}
        self.possible_agents = list(self.lives)
        self.kind, self.how, self.silent, self.render_mode = kind, how, silent, render_mode
        self.continuous, self.closed = continuous, 0

    @functools.cache  # noqa: B019
    def observation_space(self, agent):
        plain = spaces.Box(0, np.inf, (1 if agent == "ant" else 2,))
        if self.how != "observed":
            return plain
        return spaces.Dict({"observation": plain, "action_mask": spaces.MultiBinary(sum(BRANCHES))})

    @functools.cache  # noqa: B019
    def action_space(self, agent):
        if self.continuous and agent == "ant":
            return spaces.Box(-1, 1, (2,))
        return spaces.Discrete(4) if agent == "bee" and self.how == "none" else spaces.MultiDiscrete(BRANCHES)

    def reset(self, seed=None, options=None):
        self.seed, self.t = seed or 0, 0
        self.agents = [agent for agent in self.possible_agents if agent != "late"]
        return self._observe_all(self.agents), self._infos(self.agents)

    def step(self, actions):
        assert sorted(actions) == sorted(self.agents), f"{actions} for {self.agents}"
        assert all(self.action_space(agent).contains(action) for agent, action in actions.items()), actions
        self.t += 1
        acted = list(self.agents)
        over = {agent: self.t == self.lives[agent] for agent in acted}
        self.agents = [agent for agent in acted if not over[agent]]
        joined = ["late"] if "late" in self.lives and self.t == LATE else []
        self.agents += joined
        observing = self.agents if self.silent else [*acted, *joined]
        terminated = {agent: over[agent] and self.kind == "terminated" for agent in acted}
        truncated = {agent: over[agent] and self.kind == "truncated" for agent in acted}
        reward = dict.fromkeys(acted, self.t / 8)
        return self._observe_all(observing), reward, terminated, truncated, self._infos(observing)

    def close(self):
        self.closed += 1

    def _observe_all(self, agents):
        return {agent: self._observe(agent) for agent in agents}

    def _observe(self, agent):
        plain = np.array([self.t, self.seed % 1000][: 1 if agent == "ant" else 2], np.float32)
        return {"observation": plain, "action_mask": allowed(self.t)} if self.how == "observed" else plain

    def _infos(self, agents):
        return {agent: {"action_mask": allowed(self.t)} if self.how == "info" else {} for agent in agents}
