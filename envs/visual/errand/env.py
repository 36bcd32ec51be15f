"""Errand: fetch one of three things in a garden. Observations are an image and a vector that names the thing."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

THINGS = 3
MOVES = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)])  # up, down, left, right
AWAY = 3  # moves from the start to every thing
STRIDE = 2  # pixels per move
SIDE = STRIDE * (2 * AWAY + 1)  # height and width of the image, in pixels
STEPS = 8  # moves of an episode at most
COST = 0.05  # cost of a move
NEAR = range(-AWAY, AWAY + 1)
COLOURS = ((230, 40, 40), (40, 230, 40), (60, 80, 255))  # red, green and blue of each thing


class Errand(gymnasium.Env):
    """A garden with three things, of which the one that is asked for has to be fetched.

    The observation has `picture` [SIDE, SIDE, 3] uint8, the garden seen from above with the agent in the middle, and
    `asked` [THINGS], the one-hot index of the thing to fetch.

    The things are `AWAY` moves from the start, in different places, and none is on the shortest path to another, so
    that the best return is the same from every start. The reward of a move is -`COST`. The episode terminates with +1
    at the thing that is asked for, with -1 at another thing, and after `STEPS` moves. `step` raises ValueError for an
    action outside the space.
    """

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            {
                "picture": spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8),
                "asked": spaces.Box(0, 1, (THINGS,), np.float32),
            }
        )
        self.action_space = spaces.Discrete(len(MOVES))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        """Draw a garden."""
        super().reset(seed=seed)
        ring = [np.array([row, column]) for row in NEAR for column in NEAR if abs(row) + abs(column) == AWAY]
        self.things = self.np_random.permutation(ring)[:THINGS]  # relative to the agent
        self.asked = int(self.np_random.integers(THINGS))
        self.left = STEPS
        return self._obs(), {}

    def step(self, action: int) -> tuple[dict, float, bool, bool, dict]:
        """Move the agent, which shifts all things in the opposite direction."""
        if not self.action_space.contains(action):
            raise ValueError(f"an action is a move from 0 to {len(MOVES) - 1}, not {action}")
        self.left -= 1
        self.things = self.things - MOVES[action]
        found = np.flatnonzero((self.things == 0).all(1))
        reward = -COST
        if len(found):
            reward += 1 if found[0] == self.asked else -1
        return self._obs(), reward, bool(len(found) or not self.left), False, {}

    def _obs(self) -> dict[str, np.ndarray]:
        picture = np.zeros((SIDE, SIDE, 3), np.uint8)
        for place, colour in zip(self.things, COLOURS, strict=True):
            if np.abs(place).max() <= AWAY:
                row, column = STRIDE * (place + AWAY)
                picture[row : row + STRIDE, column : column + STRIDE] = colour
        return {"picture": picture, "asked": np.eye(THINGS, dtype=np.float32)[self.asked]}


def mean_optimum() -> float:
    """Return the best return, which is the same from every start."""
    return 1 - AWAY * COST


def make() -> gymnasium.Env:
    """Return the environment; `env_name: env.py` in config.yaml calls this function."""
    return Errand()
