"""Environments that wait in their steps. Worker processes import this module, so it imports little."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from gymnasium import spaces

from tests.adapters.counted import TRUNCATED, CountedEpisodes


class Marking(CountedEpisodes):
    """An environment that creates the file `mark` when a step has ended."""

    def __init__(self, mark, ends=((9, TRUNCATED),), render_mode=None):
        super().__init__(ends, render_mode)
        self.mark = Path(mark)

    def step(self, action):
        try:
            return super().step(action)
        finally:
            self.mark.touch()


class Slow(CountedEpisodes):
    """An environment whose step takes `seconds`."""

    def __init__(self, seconds, ends=((9, TRUNCATED),), render_mode=None):
        super().__init__(ends, render_mode)
        self.seconds = seconds

    def step(self, action):
        time.sleep(self.seconds)
        return super().step(action)


class Large(CountedEpisodes):
    """An environment whose observation of a megabyte does not fit into a pipe."""

    observation_space = spaces.Box(-np.inf, np.inf, (250_000,), np.float32)

    def _obs(self):
        return np.broadcast_to(super()._obs(), self.observation_space.shape)
