"""Environments of Gymnasium that fail: at the third step, or with values that are NaN."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium import spaces

from tests.adapters.counted import Ticks
from tests.adapters.spaced import Sampling

SPACES = {"observation_space": spaces.Box(-1, 1, (2,)), "action_space": spaces.Discrete(2)}


class FragileVector(Ticks):
    """A vector environment that raises an error at its third step."""

    def step(self, actions):
        if self.count[0] == 2:
            raise RuntimeError("a motor\nis broken")
        return super().step(actions)


class Invalid(Sampling):
    """An environment whose first observations are valid, and all others NaN."""

    def __init__(self, reward: float = 1.0):
        super().__init__(**SPACES)
        self.reward = reward

    def step(self, action):
        return np.full(2, np.nan, np.float32), self.reward, False, False, {}


gymnasium.register("Invalid-v0", Invalid, max_episode_steps=3)
gymnasium.register("Fragile-v0", lambda: Sampling(**SPACES), vector_entry_point=FragileVector, max_episode_steps=50)
