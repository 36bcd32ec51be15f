"""A car on a line is to be parked on its target: a gear and a throttle at each step."""

from __future__ import annotations

from math import ceil
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

REVERSE, PARK, FORWARD = range(3)
REACH = {REVERSE: -0.25, FORWARD: 0.5}  # how far full throttle drives
FUEL = 0.1  # what a step of driving costs, at any throttle
MISS = 2.0  # what a unit of distance costs where the car stops
GAP = (1.2, 2.0)  # how far the target is from the start, in full throttles
EDGE = 1.5
STEPS = 12


class Parking(gymnasium.Env):
    """One sees the car's place, the target, and the share of steps left.

    The target lies where two steps of driving are needed, ahead or behind, at a throttle that depends on how far: the
    best return is the same from every start.

    Driving costs `FUEL`. Park ends the episode with 1 - `MISS` times the distance that is left; so does the last step,
    whatever it was. `step` raises ValueError for an action outside the space.
    """

    def __init__(self) -> None:
        low, high = np.array([-EDGE, -1, 0], np.float32), np.array([EDGE, 1, 1], np.float32)
        self.observation_space = spaces.Box(low, high)
        self.action_space = spaces.Dict({"gear": spaces.Discrete(3), "throttle": spaces.Box(0, 1, (1,))})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """The car and its target somewhere in [-1, 1]."""
        super().reset(seed=seed)
        gear = self.np_random.choice([REVERSE, FORWARD])
        gap = REACH[gear] * self.np_random.uniform(*GAP)
        self.place = self.np_random.uniform(max(-1, -1 - gap), min(1, 1 - gap))
        self.target = self.place + gap
        self.left = STEPS
        return self._obs(), {}

    def step(self, action: dict[str, Any]) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Drive, or park."""
        if not self.action_space.contains(action):
            raise ValueError(f"parking takes a gear of 0, 1, 2 and a throttle from 0 to 1, not {action}")
        self.left -= 1
        parked, reward = action["gear"] == PARK, 0.0
        if not parked:
            move = REACH[int(action["gear"])] * float(action["throttle"][0])
            self.place = float(np.clip(self.place + move, -EDGE, EDGE))
            reward -= FUEL
        over = bool(parked or not self.left)
        if over:
            reward += 1 - MISS * abs(self.target - self.place)
        return self._obs(), reward, over, False, {}

    def _obs(self) -> np.ndarray:
        return np.array([self.place, self.target, self.left / STEPS], np.float32)


def optimum(gap: float) -> float:
    """The best return where the target is `gap` ahead of the car, negative for behind.

    Every step but the last drives at full throttle, and the last one up to the target, unless it is so near that
    fuel is dearer than the miss. This is never more than 9 steps.
    """
    reach = abs(REACH[FORWARD if gap > 0 else REVERSE])
    steps = range(ceil(abs(gap) / reach) + 1)
    return max(1 - FUEL * n - MISS * max(0.0, abs(gap) - n * reach) for n in steps)


def mean_optimum() -> float:
    """The mean of `optimum` over all starts: two steps of driving, and no miss."""
    return 1 - 2 * FUEL


def make() -> gymnasium.Env:
    """What `env_name: env.py` calls."""
    return Parking()
