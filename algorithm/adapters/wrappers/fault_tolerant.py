"""One copy of a Gymnasium environment that may raise: rebuilt where it stands, in whichever process that is."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import gymnasium

from algorithm.adapters.adapter import derive_seed
from algorithm.adapters.worker_setup import prepare_worker
from algorithm.errors import format_traceback

STEP_ERROR = (
    "samara_step_error"  # in an info: the traceback of a step that raised; its episode is over and its last row unknown
)
RESET_ERROR = (
    "samara_reset_error"  # in an info: the traceback of a reset that raised; the environment was made anew for it
)


class FaultTolerantEnv(gymnasium.Wrapper):
    """Passes everything on until the environment raises; then it is made anew with `make`.

    A step that raised cuts the episode (`truncated`), so that a reset follows in every autoreset mode; what it shows
    was shown at its start, to be left out. The first reset is not tried again, nor one that fails twice in a row.
    """

    def __init__(self, make: Callable[[], gymnasium.Env]):
        self._make = partial(call_simulator, make)
        super().__init__(self._make())
        self._seed: int | None = None
        self._started = False
        self._rebuilds = 0
        self._is_new = False  # made anew and not reset since

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """As the environment does."""
        try:
            return self.env.step(action)
        except (Exception, SystemExit) as error:  # a simulator may raise anything
            error_text = format_traceback(error)
        self._rebuild()
        return self._last_obs, 0.0, False, True, {STEP_ERROR: error_text}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As the environment does."""
        if seed is not None:
            self._seed = seed
        try:
            return self._reset(seed, options)
        except Exception as error:  # a simulator may raise anything
            if not self._started:
                raise
            error_text = format_traceback(error)
        self._rebuild()
        obs, info = self._reset(seed, options)
        return obs, {**info, RESET_ERROR: error_text}

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        if self._is_new and seed is None and self._seed is not None:
            seed = derive_seed(self._seed, self._rebuilds)
        self._last_obs, info = call_simulator(self.env.reset, seed=seed, options=options)
        self._started, self._is_new = True, False
        return self._last_obs, info

    def _rebuild(self) -> None:
        with suppress(Exception, SystemExit):  # what is broken may break once more, and is given up anyway
            self.env.close()
        self.env = self._make()
        self._rebuilds += 1
        self._is_new = True


def call_simulator(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function of a simulator. Raises RuntimeError for `sys.exit`, which must not end this process."""
    try:
        return call(*args, **kwargs)
    except SystemExit as error:
        raise RuntimeError(f"sys.exit({'' if error.code is None else repr(error.code)}) was called") from error


class EnvFactory:
    """A factory of one guarded environment, in the main process or in one of its own."""

    def __init__(self, make: Callable[[], gymnasium.Env]):
        self.make = make
        self.owner_pid = os.getpid()

    def __call__(self) -> FaultTolerantEnv:
        if os.getpid() != self.owner_pid:
            prepare_worker()
        return FaultTolerantEnv(self.make)
