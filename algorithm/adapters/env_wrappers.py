"""Wrappers of a single environment: from settings, and for the rebuilding of an environment that raised."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

import gymnasium

from algorithm.adapters.adapter import EnvConfig, UnsupportedEnvironment, derive_seed
from algorithm.adapters.env_errors import describe_missing
from algorithm.adapters.process_setup import prepare_worker
from algorithm.errors import format_traceback, is_stop, summarize_error, summarize_with_place

Wrappers = Sequence[tuple[str, Mapping[str, Any]]]  # pairs of `module:Wrapper` and keyword arguments

# Keys in the info of an environment that raised, with the traceback as value, whose last line is the summary.
STEP_ERROR = "samara_step_error"  # a step raised: the episode is truncated, its final observation is unknown
RESET_ERROR = "samara_reset_error"  # a reset raised: the environment was rebuilt and reset
ERROR_CONSEQUENCES = {
    STEP_ERROR: "in a step; its episode is truncated and the environment rebuilt",
    RESET_ERROR: "in a reset; the environment is rebuilt",
}


def apply_wrappers(env: Any, wrappers: Wrappers) -> Any:
    """Return an environment of Gymnasium or PettingZoo inside all wrappers, the last one outermost.

    Lists among their arguments are converted to tuples, which YAML cannot express. Raises UnsupportedEnvironment for a
    wrapper that does not exist, or raises an error.
    """
    for path, arguments in wrappers:
        try:
            env = load_callable(path)(env, **{key: _to_tuple(value) for key, value in arguments.items()})
        except UnsupportedEnvironment as error:
            raise UnsupportedEnvironment(f"env_wrappers: {error}") from error
        except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
            raise UnsupportedEnvironment(f"env_wrappers: {path} {describe_missing(path, error)}") from error
        except Exception as error:  # a wrapper may raise any exception
            raise UnsupportedEnvironment(f"env_wrappers: {path}: {summarize_error(error)}") from error
    return env


def reject_wrappers(config: EnvConfig, kind: str) -> None:
    """Raise UnsupportedEnvironment if there are wrappers, since this kind of environment cannot be wrapped."""
    if config.wrappers:
        names = ", ".join(path for path, _ in config.wrappers)
        raise UnsupportedEnvironment(f"env_wrappers ({names}) wrap single environments, and {kind} has none")


def load_callable(path: str) -> Callable[..., Any]:
    """Import the function or class of a path `module:name`. Raises UnsupportedEnvironment if the module lacks it."""
    module, _, name = path.partition(":")
    function = getattr(import_module(module), name, None)
    if not callable(function):
        raise UnsupportedEnvironment(f"{module} has no function or class {name!r}")
    return function


class FaultTolerantEnv(gymnasium.Wrapper):
    """A wrapper that rebuilds its environment with `make` when a step or a reset raises.

    A step that raises truncates the episode, so that a reset follows in every autoreset mode. Such a step returns the
    first observation of the episode, which must be ignored; STEP_ERROR in the info marks it. A reset is repeated once
    after a rebuild, except the first reset, whose exception is raised.
    """

    def __init__(self, make: Callable[[], gymnasium.Env]):
        self._make = partial(call_simulator, make)
        super().__init__(self._make())
        self._seed: int | None = None
        self._has_started = False
        self._rebuilds = 0
        self._is_rebuilt = False  # rebuilt and not yet reset

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the environment; rebuild it if it raises."""
        try:
            return self.env.step(action)
        except BaseException as error:  # an environment may raise any exception
            if is_stop(error):
                raise
            error_text = _describe(error)
        self._rebuild()
        return self._start_obs, 0.0, False, True, {STEP_ERROR: error_text}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; rebuild it and reset it again if it raises."""
        if seed is not None:
            self._seed = seed
        try:
            return self._reset(seed, options)
        except Exception as error:  # an environment may raise any exception
            if not self._has_started:
                raise
            error_text = _describe(error)
        self._rebuild()
        obs, info = self._reset(seed, options)
        return obs, {**info, RESET_ERROR: error_text}

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        if self._is_rebuilt and seed is None and self._seed is not None:
            seed = derive_seed(self._seed, self._rebuilds)
        self._start_obs, info = call_simulator(self.env.reset, seed=seed, options=options)
        self._has_started, self._is_rebuilt = True, False
        return self._start_obs, info

    def _rebuild(self) -> None:
        with suppress(Exception, SystemExit):  # closing a broken environment may raise too
            self.env.close()
        self.env = self._make()
        self._rebuilds += 1
        self._is_rebuilt = True


def _describe(error: BaseException) -> str:
    """Return the traceback of an error, whose last line is its summary with the place in the user's code."""
    return f"{format_traceback(error)}\n{summarize_with_place(error)}"


def call_simulator(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function of an environment.

    Raises RuntimeError for what is no Exception and must not end this process: `sys.exit`, or a class of the user.
    """
    try:
        return call(*args, **kwargs)
    except SystemExit as error:
        raise RuntimeError(f"sys.exit({'' if error.code is None else repr(error.code)}) was called") from error
    except BaseException as error:
        if isinstance(error, Exception) or is_stop(error):
            raise
        raise RuntimeError(f"{summarize_error(error)} was raised") from error


def make_fault_tolerant(make: Callable[[], gymnasium.Env], owner_pid: int) -> FaultTolerantEnv:
    """Return one fault-tolerant environment, in the process `owner_pid` or in one of its worker processes."""
    if os.getpid() != owner_pid:
        prepare_worker()
        # The main process ends its workers. Programs that an environment starts do not inherit this handler.
        signal.signal(signal.SIGTERM, lambda *_: None)
    return FaultTolerantEnv(make)


def _to_tuple(value: Any) -> Any:
    return tuple(_to_tuple(part) for part in value) if isinstance(value, list) else value
