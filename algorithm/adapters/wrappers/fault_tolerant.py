"""One copy of a Gymnasium environment that may raise: rebuilt where it stands, in whichever process that is."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import gymnasium

from algorithm.adapters.adapter import later_seed
from algorithm.adapters.worker_setup import prepare_helper
from algorithm.errors import trace

LOST = "samara_lost"  # in an info: the traceback of a step that raised; its episode is over and its last row unknown
REBUILT = "samara_rebuilt"  # in an info: the traceback of a reset that raised; the environment was made anew for it


class Guard(gymnasium.Wrapper):
    """Passes everything on until the environment raises; then it is made anew with `make`.

    A step that raised cuts the episode (`truncated`), so that a reset follows in every autoreset mode; what it shows
    was shown at its start, to be left out. The first reset is not tried again, nor one that fails twice in a row.
    """

    def __init__(self, make: Callable[[], gymnasium.Env]):
        self._make = partial(call_simulator, make)
        super().__init__(self._make())
        self._seed: int | None = None
        self._started = False
        self._rebuilt = 0
        self._fresh = False  # made anew and not reset since

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As the environment does."""
        try:
            return self.env.step(action)
        except (Exception, SystemExit) as error:  # a simulator may raise anything
            trouble = trace(error)
        self._rebuild()
        return self._shown, 0.0, False, True, {LOST: trouble}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the environment does."""
        if seed is not None:
            self._seed = seed
        try:
            return self._reset(seed, options)
        except Exception as error:  # a simulator may raise anything
            if not self._started:
                raise
            trouble = trace(error)
        self._rebuild()
        obs, info = self._reset(seed, options)
        return obs, {**info, REBUILT: trouble}

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        if self._fresh and seed is None and self._seed is not None:
            seed = later_seed(self._seed, self._rebuilt)
        self._shown, info = call_simulator(self.env.reset, seed=seed, options=options)
        self._started, self._fresh = True, False
        return self._shown, info

    def _rebuild(self) -> None:
        with suppress(Exception, SystemExit):  # what is broken may break once more, and is given up anyway
            self.env.close()
        self.env = self._make()
        self._rebuilt += 1
        self._fresh = True


def call_simulator(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function of a simulator. Raises RuntimeError for `sys.exit`, which must not end this process."""
    try:
        return call(*args, **kwargs)
    except SystemExit as error:
        raise RuntimeError(f"sys.exit({'' if error.code is None else repr(error.code)}) was called") from error


class Factory:
    """A factory of one guarded environment, in the main process or in one of its own."""

    def __init__(self, make: Callable[[], gymnasium.Env]):
        self.make = make
        self.owner = os.getpid()

    def __call__(self) -> Guard:
        if os.getpid() != self.owner:
            prepare_helper()
        return Guard(self.make)
