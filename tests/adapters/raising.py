"""Environments that raise, exit or hang. Worker processes import this module, so it imports little."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.adapters.counted import TRUNCATED, CountedEpisodes


class Raising(CountedEpisodes):
    """An environment that fails in its `at`-th step or reset if its seed is `culprit`; drawn seeds are 100 to 899."""

    def __init__(self, ends=((9, TRUNCATED),), culprit=0, at=3, where="step", how="raise", mark=None, render_mode=None):
        super().__init__(ends, render_mode)
        self.culprit, self.at, self.where, self.how, self.mark = culprit, at, where, how, mark
        self.calls = {"step": 0, "reset": 0}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.name = self.name if self.name < 1000 else 100 + self.name % 800
        self._fail("reset")
        return self._obs(), {}

    def step(self, action):
        self._fail("step")
        return super().step(action)

    def _fail(self, where):
        self.calls[where] += 1
        if where != self.where or self.name != self.culprit or self.calls[where] != self.at or self._failed_before():
            return
        if self.how == "exit":
            os._exit(7)
        if self.how == "hang":
            time.sleep(1000)
        raise ArithmeticError("the ground gave way")

    def _failed_before(self) -> bool:
        """Return whether any process has failed before, which the file `mark` records."""
        if self.mark is None:
            return False
        before = Path(self.mark).exists()
        Path(self.mark).touch()
        return before


class NowAndThenRaising(CountedEpisodes):
    """An environment whose seventh step raises."""

    def step(self, action):
        if self.executed == 6:
            raise ArithmeticError("the ground gave way")
        return super().step(action)


class AlwaysRaising(CountedEpisodes):
    """An environment whose every step raises."""

    def step(self, action):
        raise ArithmeticError("the ground gave way")
