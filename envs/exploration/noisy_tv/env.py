"""NoisyTv: a corridor with a reward at its far end, and a television at the start whose pictures are unpredictable."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

LEFT, RIGHT, WATCH = range(3)
LENGTH = 40
STEPS = 60
PICTURES = 16
PIXELS = 16  # pixels of the screen
PICTURE_SEED = 0


class NoisyTv(gymnasium.Env):
    """A corridor of cells in which the reward is far from a source of noise (Burda et al. 2018, arXiv 1808.04355).

    An episode starts in the first cell, where a television shows a picture. There the action `WATCH` switches to
    another picture, drawn uniformly; in other cells it has no effect. The episode terminates with the reward 1 in the
    last cell, and with the reward 0 after `steps` steps.

    The next picture is unpredictable, so that the error of a forward model (curiosity) stays high however long it
    learns. The pictures are a fixed set, so that the error of random network distillation falls to 0: there are only
    length - 1 + pictures different observations.

    The observation is the cell, one-hot [length], and the pixels of the screen [`PIXELS`], which are 0 in all cells but
    the first. `info["watched"]` is the number of steps of the episode in which the agent watched, that is, took the
    action `WATCH` in the first cell. `step` raises ValueError for an action outside the space.

    Args:
        length: Number of cells.
        steps: Largest number of steps of an episode.
        pictures: Number of pictures; the same set in every environment.
    """

    def __init__(self, length: int = LENGTH, steps: int = STEPS, pictures: int = PICTURES):
        if not 2 <= length <= steps + 1:
            raise ValueError(f"length {length} must be at least 2 and at most steps + 1, which is {steps + 1}")
        if not 2 <= pictures < 2**PIXELS:
            raise ValueError(f"pictures {pictures} must be at least 2 and below 2^{PIXELS}")
        self.length, self.steps = length, steps
        numbers = np.random.default_rng(PICTURE_SEED).choice(2**PIXELS - 1, pictures, replace=False) + 1
        self.pictures = (numbers[:, None] >> np.arange(PIXELS) & 1).astype(np.int8)  # all different, none of them dark
        self.observation_space = spaces.MultiBinary(length + PIXELS)
        self.action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Start in the first cell, with any picture."""
        super().reset(seed=seed)
        self.cell = self.taken = self.watched = 0
        self.picture = int(self.np_random.integers(len(self.pictures)))
        return self._obs(), self._info()

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Move, or watch."""
        if not self.action_space.contains(action):
            raise ValueError(f"an action is 0 (left), 1 (right) or 2 (watch), not {action}")
        self.taken += 1
        if action != WATCH:
            self.cell = max(self.cell + (1 if action == RIGHT else -1), 0)
        elif self.cell == 0:
            self.watched += 1
            shift = int(self.np_random.integers(1, len(self.pictures)))  # never the same picture
            self.picture = (self.picture + shift) % len(self.pictures)
        arrived = self.cell == self.length - 1
        return self._obs(), float(arrived), bool(arrived or self.taken == self.steps), False, self._info()

    def _obs(self) -> np.ndarray:
        obs = np.zeros(self.length + PIXELS, np.int8)
        obs[self.cell] = 1
        if self.cell == 0:
            obs[self.length :] = self.pictures[self.picture]
        return obs

    def _info(self) -> dict[str, int]:
        return {"watched": self.watched}


def mean_optimum() -> float:
    """Return the best return: the last cell is at most `steps` steps away."""
    return 1.0


def make(**env_args: Any) -> gymnasium.Env:
    """Return the environment; `env_name: env.py` in config.yaml calls this function."""
    return NoisyTv(**env_args)
