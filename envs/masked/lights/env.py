"""Lights: pick one lit light in each row and column of a board. The action mask is in the observation."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

SIZE = 3


class Lights(gymnasium.Env):
    """A board of lights, of which a step picks one by its row and its column.

    Every row and every column is picked once. The reward is 1 for a lit light. A light is lit with probability 1/2, on
    boards where three lit lights can be picked, so that the best return is 3 on every board.

    The observation has `lit` [row, column], which is 0 in rows and columns that were picked, and `action_mask`, which
    is 1 for the rows, then the columns, that remain. `step` raises ValueError for a row or a column that was picked.
    """

    def __init__(self) -> None:
        mask, lit = spaces.MultiBinary(2 * SIZE), spaces.MultiBinary([SIZE, SIZE])
        self.observation_space = spaces.Dict({"action_mask": mask, "lit": lit})
        self.action_space = spaces.MultiDiscrete([SIZE, SIZE])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        """Draw a board."""
        super().reset(seed=seed)
        self.lit = np.zeros((SIZE, SIZE), np.int8)
        while optimum(self.lit) < SIZE:
            self.lit = self.np_random.integers(2, size=(SIZE, SIZE), dtype=np.int8)
        self.left = np.ones((2, SIZE), np.int8)
        return self._obs(), {}

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, bool, dict]:
        """Pick one light."""
        row, column = action
        if not (self.left[0, row] and self.left[1, column]):
            raise ValueError(f"row {row} or column {column} was picked before; the mask is {self.left.tolist()}")
        reward = float(self.lit[row, column])
        self.lit[row] = self.lit[:, column] = 0
        self.left[0, row] = self.left[1, column] = 0
        return self._obs(), reward, not self.left.any(), False, {}

    def _obs(self) -> dict[str, np.ndarray]:
        return {"action_mask": self.left.flatten(), "lit": self.lit.copy()}


def optimum(lit: np.ndarray) -> float:
    """Return the best return on a board: the most lit lights over all assignments of columns to rows."""
    rows = range(SIZE)
    return float(
        max(sum(lit[row, column] for row, column in zip(rows, way, strict=True)) for way in permutations(rows))
    )


def mean_optimum() -> float:
    """Return the mean of `optimum` over all boards; a player who picks any lit light reaches less."""
    return float(SIZE)


def make() -> gymnasium.Env:
    """Return the environment; `env_name: env.py` in config.yaml calls this function."""
    return Lights()
