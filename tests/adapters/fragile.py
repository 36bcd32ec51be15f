"""Environments of Gymnasium that fail: at the third step, or with values that are NaN."""

from __future__ import annotations

from typing import ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from tests.adapters.spaced import Sampling

SPACES = {"observation_space": spaces.Box(-1, 1, (2,)), "action_space": spaces.Discrete(2)}


class FragileVector(VectorEnv):
    """A vector environment that raises an error at its third step."""

    metadata: ClassVar = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs: int = 1, **_):
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = SPACES["observation_space"], SPACES["action_space"]
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        return np.zeros((self.num_envs, 2), np.float32), {}

    def step(self, actions):
        self.steps += 1
        if self.steps > 2:
            raise RuntimeError("a motor\nis broken")
        none = np.zeros(self.num_envs, bool)
        return np.zeros((self.num_envs, 2), np.float32), np.ones(self.num_envs), none, none, {}


class Invalid(Sampling):
    """An environment whose first observations are valid, and all others NaN."""

    def __init__(self, reward: float = 1.0):
        super().__init__(**SPACES)
        self.reward = reward

    def step(self, action):
        return np.full(2, np.nan, np.float32), self.reward, False, False, {}


gymnasium.register("Invalid-v0", Invalid, max_episode_steps=3)
gymnasium.register("Fragile-v0", lambda: Sampling(**SPACES), vector_entry_point=FragileVector, max_episode_steps=50)
