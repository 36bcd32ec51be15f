"""Environments with predictable episodes. Worker processes import this module, so it imports little."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces

TRUNCATED, TERMINATED, BOTH = "truncated", "terminated", "both"
KINDS = (TRUNCATED, TERMINATED, BOTH)


class CountedEpisodes(gymnasium.Env):
    """An environment that observes 1000 * seed + 10 * episode + t; the reward is observation / 8 + action.

    `ends` has the length and the kind of end of successive episodes, cyclically; without `ends` both are drawn.
    """

    observation_space = spaces.Box(-np.inf, np.inf, (1,))
    action_space = spaces.Discrete(2)

    def __init__(self, ends=(), render_mode=None):
        self.ends = ends
        self.render_mode = render_mode
        self.executed = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.name, self.episode = seed, 0
        self.episode += 1
        self.t = 0
        if self.ends:
            self.length, self.kind = self.ends[(self.episode - 1) % len(self.ends)]
        else:
            self.length, self.kind = self.np_random.integers(1, 6), KINDS[self.np_random.integers(3)]
        return self._obs(), {}

    def step(self, action):
        reward = float(self._obs()[0] / 8 + action)
        self.executed += 1
        self.t += 1
        over = self.t == self.length
        return self._obs(), reward, over and self.kind != TRUNCATED, over and self.kind != TERMINATED, {}

    def _obs(self):
        return np.array([1000 * self.name + 10 * self.episode + self.t], np.float32)


class EchoingActions(gymnasium.Env):
    """An environment that observes its last action; episodes are truncated after two steps."""

    def __init__(self, observation_space, action_space, render_mode=None):
        self.observation_space, self.action_space = observation_space, action_space
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self._obs(0), {}

    def step(self, action):
        self.t += 1
        return self._obs(action), 0.0, False, self.t == 2, {}

    def _obs(self, action):
        space = self.observation_space
        if isinstance(space, spaces.Dict):
            return {name: np.full(part.shape, action, part.dtype) for name, part in space.spaces.items()}
        return np.full(space.shape, action, space.dtype)


class NeverStarts(gymnasium.Env):
    """An environment whose constructor raises."""

    def __init__(self, render_mode=None):
        raise RuntimeError("no licence found")


class NeverResets(gymnasium.Env):
    """An environment whose reset raises."""

    observation_space = spaces.Box(-1, 1, (1,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        raise RuntimeError("the level is missing")


gymnasium.register("CountedEpisodes-v0", CountedEpisodes, kwargs={"ends": ((2, TRUNCATED),)})
gymnasium.register("NeverStarts-v0", NeverStarts)
gymnasium.register("NeverResets-v0", NeverResets)
