"""A board of lights, some of them lit: pick one of each row and column. The mask stands in the observation."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

SIZE = 3


class Lights(gymnasium.Env):
    """A step picks a row and a column, each once; a lit light is worth 1.

    Every light is lit with probability 1/2, on boards where all three picks can be lit: the best return is always 3.

    One sees `lit` [row, column], which is 0 where row or column is used up, and `action_mask`: which rows, then which
    columns, are left; none at the end. `step` raises ValueError for a row or a column that is used up.
    """

    def __init__(self) -> None:
        mask, lit = spaces.MultiBinary(2 * SIZE), spaces.MultiBinary([SIZE, SIZE])
        self.observation_space = spaces.Dict({"action_mask": mask, "lit": lit})
        self.action_space = spaces.MultiDiscrete([SIZE, SIZE])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        """A new board."""
        super().reset(seed=seed)
        self.lit = np.zeros((SIZE, SIZE), np.int8)
        while optimum(self.lit) < SIZE:
            self.lit = self.np_random.integers(2, size=(SIZE, SIZE), dtype=np.int8)
        self.left = np.ones((2, SIZE), np.int8)
        return self._obs(), {}

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, bool, dict]:
        """Pick a light."""
        row, column = action
        if not (self.left[0, row] and self.left[1, column]):
            raise ValueError(f"row {row} or column {column} is used up; left are {self.left.tolist()}")
        reward = float(self.lit[row, column])
        self.lit[row] = self.lit[:, column] = 0
        self.left[0, row] = self.left[1, column] = 0
        return self._obs(), reward, not self.left.any(), False, {}

    def _obs(self) -> dict[str, np.ndarray]:
        return {"action_mask": self.left.flatten(), "lit": self.lit.copy()}


def optimum(lit: np.ndarray) -> float:
    """The best return on a board: of all ways to give every row a column of its own, the one with most lit."""
    rows = range(SIZE)
    return float(
        max(sum(lit[row, column] for row, column in zip(rows, way, strict=True)) for way in permutations(rows))
    )


def mean_optimum() -> float:
    """The mean of `optimum` over all boards that are shown; picking any light that is lit reaches less."""
    return float(SIZE)


def make() -> gymnasium.Env:
    """What `env_name: env.py` calls."""
    return Lights()
