"""A point mass in a maze of two rooms, with a goal in the other room, and a reward only at the goal."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

SIDE = 2.0  # of the square
WALL = 1.0, 1.7  # x of the vertical wall between the rooms, and its upper end; it begins at y = 0
RADIUS = 0.08  # distance to the goal at which it is reached
STEPS = 60  # of an episode
PUSH, FRICTION = 0.08, 0.6  # acceleration of an action of 1 per step; part of the speed that is kept


class PointMaze(gymnasium.Env):
    """A point that starts in the lower left corner, and is pushed towards a goal around a wall.

    The goal is anywhere in the right room. The reward of the step that reaches it is 1, and the episode
    terminates; all other rewards are 0. The wall stops the part of a step across it. The observations are
    `observation`, the position and the speed [4]; `achieved_goal`, the position [2]; and `desired_goal` [2], as in
    Gymnasium-Robotics, whose methods `compute_reward` and `compute_terminated` support batches here.
    """

    def __init__(self) -> None:
        place = spaces.Box(0.0, SIDE, (2,), np.float32)
        self.observation_space = spaces.Dict(
            {
                "observation": spaces.Box(-np.inf, np.inf, (4,), np.float32),
                "achieved_goal": place,
                "desired_goal": place,
            }
        )
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        """Start in the lower left corner, with a goal in the right room."""
        super().reset(seed=seed)
        self.steps, self.speed = 0, np.zeros(2)
        self.place = self.np_random.uniform(0.2, 0.6, 2)
        self.goal = self.np_random.uniform((1.2, 0.2), (1.8, 1.8))
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, bool, dict]:
        """Push the point."""
        self.steps += 1
        self.speed = FRICTION * self.speed + PUSH * np.clip(action, -1, 1)
        target = np.clip(self.place + self.speed, 0, SIDE)
        x, top = WALL
        if (self.place[0] - x) * (target[0] - x) < 0:
            share = (x - self.place[0]) / (target[0] - self.place[0])
            if self.place[1] + share * (target[1] - self.place[1]) < top:
                target[0], self.speed[0] = x + np.copysign(1e-3, self.place[0] - x), 0.0
        self.place = target
        obs = self._observe()
        reached = bool(self.compute_reward(obs["achieved_goal"], obs["desired_goal"], {}))
        return obs, float(reached), reached, self.steps >= STEPS and not reached, {}

    def compute_reward(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> np.ndarray:
        """Return 1 where a goal is reached, otherwise 0, [...] for goals [..., 2]."""
        return (np.linalg.norm(achieved_goal - desired_goal, axis=-1) < RADIUS).astype(np.float32)

    def compute_terminated(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> np.ndarray:
        """Return whether goals are reached."""
        return self.compute_reward(achieved_goal, desired_goal, info) > 0

    def _observe(self) -> dict[str, np.ndarray]:
        place, goal = self.place.astype(np.float32), self.goal.astype(np.float32)
        state = np.concatenate((self.place, 10 * self.speed)).astype(np.float32)
        return {"observation": state, "achieved_goal": place, "desired_goal": goal}


def make() -> PointMaze:
    """Return the environment."""
    return PointMaze()


def mean_optimum() -> float:
    """Return the best mean return: every goal can be reached, in about 40 steps."""
    return 1.0
