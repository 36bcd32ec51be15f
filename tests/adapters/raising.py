"""Environments that break as asked, in a module of their own: spawned processes import little with it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.adapters.counted import TRUNCATED, CountedEpisodes


class Raising(CountedEpisodes):
    """The copy whose seed is `culprit` breaks in its `at`-th step or reset; drawn seeds become 100 to 899."""

    def __init__(self, ends=((9, TRUNCATED),), culprit=0, at=3, where="step", how="raise", mark=None, render_mode=None):
        super().__init__(ends, render_mode)
        self.culprit, self.at, self.where, self.how, self.mark = culprit, at, where, how, mark
        self.calls = {"step": 0, "reset": 0}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed, options=options)
        self.name = self.name if self.name < 1000 else 100 + self.name % 800
        self._break("reset")
        return self._obs(), {}

    def step(self, action):
        self._break("step")
        return super().step(action)

    def _break(self, where):
        self.calls[where] += 1
        if where != self.where or self.name != self.culprit or self.calls[where] != self.at or self._broke_before():
            return
        if self.how == "exit":
            os._exit(7)
        if self.how == "hang":
            time.sleep(1000)
        raise ArithmeticError("the ground gave way")

    def _broke_before(self) -> bool:
        """`mark` is a file that remembers it over processes."""
        if self.mark is None:
            return False
        before = Path(self.mark).exists()
        Path(self.mark).touch()
        return before


class NowAndThenRaising(CountedEpisodes):
    """Starts, and raises in every seventh step of a copy."""

    def step(self, action):
        if self.executed == 6:
            raise ArithmeticError("the ground gave way")
        return super().step(action)


class AlwaysRaising(CountedEpisodes):
    """Starts, and raises in every step."""

    def step(self, action):
        raise ArithmeticError("the ground gave way")
