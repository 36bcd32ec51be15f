"""Gymnasium's vector environments: made with guarded copies, waited for as long as asked, ended whatever happened."""

from __future__ import annotations

import importlib
import multiprocessing
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

from algorithm.adapters.adapter import UnsupportedEnvironment
from algorithm.adapters.extras import missing, refuse_other_types, starting
from algorithm.adapters.guard import Factory
from algorithm.adapters.plugins import register
from algorithm.adapters.pool import Pool

Make = Callable[..., gymnasium.Env]

NATIVE_FROM = 5  # copies from which a native vector environment is faster than SyncVectorEnv (measured on CartPole)
GRACE = 5.0  # seconds that processes have to end by themselves


def make_vector(
    env_name: str | Make, copies: int, env_args: dict, limit: int | None, render: bool, timeout: float | None
) -> VectorEnv:
    """A vector environment as `GymAdapter` describes it. Raises what `GymAdapter` raises."""
    if callable(env_name):
        return make_copies(env_name, partial(cut, env_name, limit), copies, env_args, render, timeout)
    spec = _spec(env_name)
    limited: dict[str, Any] = {"max_episode_steps": limit} if limit else {}
    fast = spec.vector_entry_point is not None and copies >= NATIVE_FROM and not env_args.get("vector_kwargs")
    how = env_args.get("vectorization_mode", "vector_entry_point" if fast else "sync")
    if render or how in ("sync", "async"):
        return make_copies(env_name, partial(gymnasium.make, spec, **limited), copies, env_args, render, timeout)
    _, vector_kwargs, env_args = parted({**env_args, **limited})
    refuse_timeout(timeout)
    with starting(env_name):
        if how == "envpool":
            return Pool(spec.id, copies, {**env_args, **vector_kwargs})
        return gymnasium.make_vec(env_name, copies, how, vector_kwargs=vector_kwargs, **env_args)


def make_copies(
    env_name: str | Make, make: Make, copies: int, env_args: dict, render: bool, timeout: float | None
) -> VectorEnv:
    """Guarded copies of what `make` makes with `env_args`: all in this process (sync), or each in its own (async).

    `env_name` is what they are called where something goes wrong. Raises what `GymAdapter` raises.
    """
    how, vector_kwargs, env_args = parted(env_args)
    if render:
        how, timeout, env_args = "sync", None, {**env_args, "render_mode": "human"}
    factories = [Factory(partial(make, **env_args))] * copies
    with starting(env_name):
        if how == "async":
            return Processes(factories, timeout, **vector_kwargs)
        refuse_timeout(timeout)
        # Whoever keeps an observation copies it.
        return SyncVectorEnv(factories, **{"copy": False, **vector_kwargs})


def parted(env_args: dict) -> tuple[str | None, dict, dict]:
    """How an environment is vectorized, with which arguments, and the arguments of the environment itself."""
    own = dict(env_args)
    return own.pop("vectorization_mode", None), own.pop("vector_kwargs", {}), own


def cut(make: Make, limit: int | None, /, **env_args: Any) -> gymnasium.Env:
    """What `make` makes, with episodes of `limit` steps at most."""
    env = make(**env_args)
    return gymnasium.wrappers.TimeLimit(env, limit) if limit else env


def refuse_timeout(timeout: float | None) -> None:
    """Raises UnsupportedEnvironment where there are no processes to wait for."""
    if timeout is not None:
        raise UnsupportedEnvironment(
            f"env_timeout is {timeout:g}, but only processes can be given up: set env_args.vectorization_mode to async"
        )


class Processes(AsyncVectorEnv):
    """Spawned processes that are waited for `timeout` seconds at most; ending them never hangs.

    `step` and `reset` raise RuntimeError, naming the copies, where processes ended or did not answer in time.
    """

    def __init__(self, factories: list[Factory], timeout: float | None, **vector_kwargs: Any):
        self.timeout = timeout
        self.grace = GRACE
        super().__init__(factories, **{"context": "spawn", **vector_kwargs})

    def step(self, actions: Any) -> Any:
        """All copies in parallel."""
        return self._wait(partial(self.step_async, actions), self.step_wait)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """All copies in parallel."""
        return self._wait(partial(self.reset_async, seed, options), self.reset_wait)

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """End all processes: by asking, and otherwise by force."""
        for pipe in self.parent_pipes:
            with suppress(OSError, AttributeError):  # of a process that is gone
                pipe.send(("close", None))
        until = time.monotonic() + self.grace
        for process in self.processes:
            process.join(max(0.0, until - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        for pipe in self.parent_pipes:
            if pipe is not None:
                pipe.close()

    def _wait(self, ask: Callable[[], None], answer: Callable[[float | None], Any]) -> Any:
        try:
            ask()
            return answer(self.timeout)
        except multiprocessing.TimeoutError as error:
            self.grace = 0.0
            late = [copy for copy, pipe in enumerate(self.parent_pipes) if not pipe.poll()]
            raise RuntimeError(f"no answer of copy {_listed(late)} within {self.timeout:g} s") from error
        except (EOFError, OSError) as error:
            for process in self.processes:
                process.join(0.2)
            gone = [f"{i} (exit code {p.exitcode})" for i, p in enumerate(self.processes) if not p.is_alive()]
            raise RuntimeError(f"the process has ended of copy {_listed(gone)}") from error

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        """Without the traceback on standard error."""
        if not all(successes):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                super()._raise_if_errors(successes)


def _spec(env_name: str) -> gymnasium.envs.registration.EnvSpec:
    refuse_other_types(env_name)
    module, _, name = env_name.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        register(name.rpartition("/")[0])
        return gymnasium.spec(name)
    except (gymnasium.error.NamespaceNotFound, ModuleNotFoundError) as error:
        raise missing(env_name, error) from error
    except gymnasium.error.Error as error:
        raise UnsupportedEnvironment(f"env_name {env_name!r}: {str(error).splitlines()[0]}") from error


def _listed(copies: list) -> str:
    return ", ".join(str(copy) for copy in copies)
