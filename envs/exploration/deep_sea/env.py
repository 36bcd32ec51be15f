"""DeepSea (Osband et al. 2020, bsuite, arXiv 1908.03568): a reward that only one sequence of actions reaches."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

SIZE = 20
COST = 0.01  # cost of moving right in every row
MAPPING_SEED = 0


class DeepSea(gymnasium.Env):
    """A grid of size x size cells in which a diver sinks by one row per step, to the left or to the right.

    An episode starts in the upper left corner and terminates after `size` steps. A step to the right costs
    `COST` / size, and has the reward 1 in the lower right corner, which the diver reaches only by moving right in
    every row. The columns have walls at both ends. Which of the two actions moves right differs from cell to cell.

    The observation is the cell, one-hot [row, column], and zero at the end. Uniformly random actions have the reward
    with probability 2^-size, and the costs lead away from it. `step` raises ValueError for an action outside the space.

    Args:
        size: Number of rows, of columns and of the steps of an episode.
        mapping_seed: Seed of the action that moves right in each cell, which is the same in every episode.
    """

    def __init__(self, size: int = SIZE, mapping_seed: int = MAPPING_SEED):
        if size < 1:
            raise ValueError(f"size {size} must be at least 1")
        self.size = size
        self.right = np.random.default_rng(mapping_seed).integers(2, size=(size, size))  # the action that moves right
        self.observation_space = spaces.MultiBinary([size, size])
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Start in the upper left corner."""
        super().reset(seed=seed)
        self.row = self.column = 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Move left or right, and down."""
        if not self.action_space.contains(action):
            raise ValueError(f"an action is 0 or 1, not {action}")
        reward, last = 0.0, self.size - 1
        if action == self.right[self.row, self.column]:
            reward = float(self.row == self.column == last) - COST / self.size
            self.column = min(self.column + 1, last)
        else:
            self.column = max(self.column - 1, 0)
        self.row += 1
        return self._obs(), reward, self.row == self.size, False, {}

    def _obs(self) -> np.ndarray:
        obs = np.zeros((self.size, self.size), np.int8)
        if self.row < self.size:
            obs[self.row, self.column] = 1
        return obs


def mean_optimum() -> float:
    """Return the best return, which is the same for every size: moving right in every row."""
    return 1 - COST


def make(**env_args: Any) -> gymnasium.Env:
    """Return the environment; `env_name: env.py` in config.yaml calls this function."""
    return DeepSea(**env_args)
