"""Parking: a car on a line has to stop on its target, with a gear and a throttle at each step."""

from __future__ import annotations

from math import ceil
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

REVERSE, PARK, FORWARD = range(3)
REACH = {REVERSE: -0.25, FORWARD: 0.5}  # distance of a step at full throttle
FUEL = 0.1  # cost of a step of driving, at any throttle
MISS = 2.0  # cost per unit of distance to the target at the end
GAP = (1.2, 2.0)  # distance of the target from the start, in steps at full throttle
EDGE = 1.5  # largest absolute position of the car
STEPS = 12  # steps of an episode at most


class Parking(gymnasium.Env):
    """A car that drives to a target and parks.

    The observation is [position of the car, target, fraction of steps left]. The target is ahead of the car or behind
    it, two steps of driving away, so that the best return is the same from every start.

    The reward of a step of driving is -`FUEL`. The gear park, and the last step with any gear, terminate the episode
    with the reward 1 - `MISS` * distance to the target. `step` raises ValueError for an action outside the space.
    """

    def __init__(self) -> None:
        low, high = np.array([-EDGE, -1, 0], np.float32), np.array([EDGE, 1, 1], np.float32)
        self.observation_space = spaces.Box(low, high)
        self.action_space = spaces.Dict({"gear": spaces.Discrete(3), "throttle": spaces.Box(0, 1, (1,))})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Draw positions of the car and its target in [-1, 1]."""
        super().reset(seed=seed)
        gear = self.np_random.choice([REVERSE, FORWARD])
        gap = REACH[gear] * self.np_random.uniform(*GAP)
        self.place = self.np_random.uniform(max(-1, -1 - gap), min(1, 1 - gap))
        self.target = self.place + gap
        self.left = STEPS
        return self._obs(), {}

    def step(self, action: dict[str, Any]) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Drive or park."""
        if not self.action_space.contains(action):
            raise ValueError(f"an action is a gear of 0, 1, 2 and a throttle from 0 to 1, not {action}")
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
    """Return the best return for a target at a distance of `gap` from the car, negative if the target is behind it.

    The best episode drives at full throttle, in the last step up to the target, as long as a step costs less than the
    distance that it saves. It has at most 9 steps.
    """
    reach = abs(REACH[FORWARD if gap > 0 else REVERSE])
    steps = range(ceil(abs(gap) / reach) + 1)
    return max(1 - FUEL * n - MISS * max(0.0, abs(gap) - n * reach) for n in steps)


def mean_optimum() -> float:
    """Return the mean of `optimum` over all starts: two steps of driving that end on the target."""
    return 1 - 2 * FUEL


def make() -> gymnasium.Env:
    """Return the environment; `env_name: env.py` in config.yaml calls this function."""
    return Parking()
