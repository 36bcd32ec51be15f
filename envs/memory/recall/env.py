"""A cue is shown once; a while later it is asked for. Only what was remembered can answer."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

CUES = 4
SHORTEST, LONGEST = 3, 8  # steps from the cue to the question


class Recall(gymnasium.Env):
    """One of `cues` is shown in the first step. After `shortest` to `longest` steps comes the question, and the end.

    The observation is the cue one-hot, and 1 behind it for the question. The reward is 1 for answering with the number
    of the cue, and 0 otherwise; actions before the question do nothing. Without a memory 1 / cues is the best.
    """

    def __init__(self, cues: int = CUES, shortest: int = SHORTEST, longest: int = LONGEST):
        if not 1 <= shortest <= longest:
            raise ValueError(f"the question comes after {shortest} to {longest} steps; at least 1, the shorter first")
        self.cues, self.shortest, self.longest = cues, shortest, longest
        self.observation_space = spaces.MultiBinary(cues + 1)
        self.action_space = spaces.Discrete(cues)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """A new cue."""
        super().reset(seed=seed)
        self.cue = int(self.np_random.integers(self.cues))
        self.left = int(self.np_random.integers(self.shortest, self.longest + 1))
        return self._show(self.cue), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Wait, or answer."""
        if not self.left:
            return self._show(), float(action == self.cue), True, False, {}
        self.left -= 1
        return (self._show() if self.left else self._show(self.cues)), 0.0, False, False, {}

    def _show(self, place: int | None = None) -> np.ndarray:
        obs = np.zeros(self.cues + 1, np.int8)
        if place is not None:
            obs[place] = 1
        return obs


def mean_optimum() -> float:
    """The best mean return."""
    return 1.0


def make(**env_args: Any) -> gymnasium.Env:
    """What `env_name: env.py` calls."""
    return Recall(**env_args)
