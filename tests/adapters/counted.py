"""Environments with predictable episodes, some of which raise, exit, hang or wait.

Worker processes import this module, so it imports little.
"""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

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


class Ticks(VectorEnv):
    """A vector environment that observes the number of steps of its episodes, which terminate after `length` steps."""

    single_observation_space, single_action_space = spaces.Box(0, np.inf, (1,)), spaces.Discrete(2)

    def __init__(self, num_envs=1, length=3, mode=AutoresetMode.NEXT_STEP, **_):
        self.num_envs, self.length = num_envs, length
        self.metadata = {"autoreset_mode": mode}

    def reset(self, *, seed=None, options=None):
        self.count = np.zeros(self.num_envs)
        return self._observe()

    def step(self, actions):
        over = self.count == self.length
        self.count = np.where(over, 0, self.count + 1)
        obs, info = self._observe()
        reward = np.where(over, 0.0, actions)
        return obs, reward, self.count == self.length, np.zeros(self.num_envs, bool), info

    def _observe(self):
        return self.count[:, None].astype(np.float32), {}


class NeverStarts(gymnasium.Env):
    """An environment whose constructor raises."""

    def __init__(self, render_mode=None):
        raise RuntimeError("no licence found")


class NeverResets(CountedEpisodes):
    """An environment whose reset raises."""

    def __init__(self, error=RuntimeError, render_mode=None):
        super().__init__(render_mode=render_mode)
        self.error = error

    def reset(self, *, seed=None, options=None):
        raise self.error("the level is missing")


class Raising(CountedEpisodes):
    """An environment that fails in its `at`-th step or reset if its seed is `culprit`; drawn seeds are 100 to 899.

    None as `at` and `culprit` stands for all.
    """

    def __init__(self, ends=((9, TRUNCATED),), culprit=0, at=3, where="step", how="raise", mark=None, render_mode=None):
        super().__init__(ends, render_mode)
        self.culprit, self.at, self.where, self.how, self.mark = culprit, at, where, how, mark
        self.calls = {"step": 0, "reset": 0}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.name = self.name if self.name < 1000 else 100 + self.name % 800
        self._fail("reset")
        return self._obs(), {}

    def step(self, action):
        self._fail("step")
        return super().step(action)

    def _fail(self, where):
        self.calls[where] += 1
        is_due = self.culprit in (None, self.name) and self.at in (None, self.calls[where])
        if where != self.where or not is_due or self._failed_before():
            return
        if self.how == "exit":
            os._exit(7)
        if self.how == "hang":
            time.sleep(1000)
        raise ArithmeticError("the ground gave way")

    def _failed_before(self) -> bool:
        """Return whether any process has failed before, which the file `mark` records."""
        if self.mark is None:
            return False
        before = Path(self.mark).exists()
        Path(self.mark).touch()
        return before


AlwaysRaising = partial(Raising, culprit=None, at=None)
NowAndThenRaising = partial(Raising, culprit=None, at=7, ends=())


class Slow(CountedEpisodes):
    """An environment whose step takes `seconds`, and creates the file `mark`."""

    def __init__(self, seconds=0.0, mark=None, ends=((9, TRUNCATED),), render_mode=None):
        super().__init__(ends, render_mode)
        self.seconds, self.mark = seconds, mark

    def step(self, action):
        time.sleep(self.seconds)
        if self.mark:
            Path(self.mark).touch()
        return super().step(action)


gymnasium.register("NeverStarts-v0", NeverStarts)
gymnasium.register("NeverResets-v0", NeverResets)
