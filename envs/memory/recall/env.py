"""Recall: a cue is observed once and has to be named some steps later, which needs a memory."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

CUES = 4
SHORTEST, LONGEST = 3, 8  # steps from the cue to the question


class Recall(gymnasium.Env):
    """A cue in the first observation, and a question about it some steps later, which ends the episode.

    An observation has `cues` values, the cue one-hot in the first observation, and one value that is 1 for the
    question. The reward is 1 if the action that follows the question is the number of the cue. Other actions have no
    effect. The best mean return without a memory is 1 / cues.

    Args:
        cues: Number of cues.
        shortest: Smallest number of steps from the cue to the question.
        longest: Largest number of steps from the cue to the question.
    """

    def __init__(self, cues: int = CUES, shortest: int = SHORTEST, longest: int = LONGEST):
        if not 1 <= shortest <= longest:
            raise ValueError(
                f"shortest {shortest} and longest {longest} must be at least 1, and shortest not above longest"
            )
        self.cues, self.shortest, self.longest = cues, shortest, longest
        self.observation_space = spaces.MultiBinary(cues + 1)
        self.action_space = spaces.Discrete(cues)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """Draw a cue."""
        super().reset(seed=seed)
        self.cue = int(self.np_random.integers(self.cues))
        self.left = int(self.np_random.integers(self.shortest, self.longest + 1))
        return self._observe(self.cue), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Wait for the question, or answer it."""
        if not self.left:
            return self._observe(), float(action == self.cue), True, False, {}
        self.left -= 1
        return (self._observe() if self.left else self._observe(self.cues)), 0.0, False, False, {}

    def _observe(self, index: int | None = None) -> np.ndarray:
        obs = np.zeros(self.cues + 1, np.int8)
        if index is not None:
            obs[index] = 1
        return obs


def mean_optimum() -> float:
    """Return the best mean return."""
    return 1.0


def make(**env_args: Any) -> gymnasium.Env:
    """Return the environment; `env_name: env.py` in config.yaml calls this function."""
    return Recall(**env_args)
