"""Gymnasium's vector environments: made with guarded copies, waited for as long as asked, ended whatever happened."""

from __future__ import annotations

import importlib
import inspect
import multiprocessing
import re
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

from algorithm.adapters.adapter import EnvironmentFailed, UnsupportedEnvironment
from algorithm.adapters.guard import Factory

Make = Callable[..., gymnasium.Env]

NATIVE_FROM = 5  # copies from which a native vector environment is faster than SyncVectorEnv (measured on CartPole)
PACKAGES = {"ALE": "ale-py", "dm_control": "shimmy[dm-control]", "MiniGrid": "minigrid"}  # of namespaces, for pip
EXTRAS = {"mujoco": "mujoco", "box2d": "box2d", "classic_control": "render"}  # of Gymnasium's own environments
GRACE = 5.0  # seconds that processes have to end by themselves


def make_vector(
    env_name: str | Make, copies: int, env_args: dict, limit: int | None, render: bool, timeout: float | None
) -> VectorEnv:
    """A vector environment as `GymAdapter` describes it. Raises what `GymAdapter` raises."""
    mode = env_args.pop("vectorization_mode", None)
    vector_kwargs = env_args.pop("vector_kwargs", {})
    if render:
        mode, timeout, env_args = "sync", None, {**env_args, "render_mode": "human"}
    native = not callable(env_name) and _spec(env_name).vector_entry_point is not None
    if mode is None:
        mode = "vector_entry_point" if native and copies >= NATIVE_FROM and not vector_kwargs else "sync"
    if timeout is not None and mode != "async":
        raise UnsupportedEnvironment(
            f"env_timeout is {timeout:g}, but only processes can be given up: set env_args.vectorization_mode to async"
        )
    try:
        if mode == "async":
            return Processes([_factory(env_name, env_args, limit)] * copies, timeout, **vector_kwargs)
        if mode == "sync" or callable(env_name):
            # Whoever keeps an observation copies it.
            return SyncVectorEnv([_factory(env_name, env_args, limit)] * copies, **{"copy": False, **vector_kwargs})
        if limit:
            env_args["max_episode_steps"] = limit
        return gymnasium.make_vec(env_name, copies, mode, vector_kwargs=vector_kwargs, **env_args)
    except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        raise missing(env_name, error) from error
    except Exception as error:  # whatever a simulator raises when it starts
        raise EnvironmentFailed(describe(env_name, "does not start", error)) from error


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


def describe(env_name: str | Make, what: str, error: Exception) -> str:
    """One line that says what went wrong with which environment."""
    name = inspect.getsourcefile(env_name) if callable(env_name) else env_name
    return f"the environment {name!r} {what}: {type(error).__name__}: {error}"


def missing(env_name: str | Make, error: Exception) -> UnsupportedEnvironment:
    """Of an environment that needs a package."""
    extra = _extra(env_name)
    if extra:
        reason = str(error.__cause__ or error).splitlines()[0]
        return UnsupportedEnvironment(
            f'the environment {env_name!r} needs the extra {extra} ({reason}): pip install -e ".[{extra}]"'
        )
    line = str(error).splitlines()[0]
    package = getattr(error, "name", None) or PACKAGES.get(str(env_name).partition("/")[0])
    if package and "pip install" not in line:
        line += f"; pip install {package}"
    return UnsupportedEnvironment(f"the environment {env_name!r} needs a package: {line}")


def _extra(env_name: str | Make) -> str | None:
    """The extra of this project that holds what one of Gymnasium's own environments needs."""
    spec = gymnasium.registry.get(str(env_name).rpartition(":")[2])
    place = re.match(r"gymnasium\.envs\.(\w+)", str(spec.entry_point)) if spec else None
    return EXTRAS.get(place[1]) if place else None


def _factory(env_name: str | Make, env_args: dict, limit: int | None) -> Factory:
    if callable(env_name):
        return Factory(partial(_make_own, env_name, env_args, limit))
    limited = {**env_args, "max_episode_steps": limit} if limit else env_args
    return Factory(partial(gymnasium.make, _spec(env_name), **limited))


def _make_own(make: Make, env_args: dict, limit: int | None) -> gymnasium.Env:
    env = make(**env_args)
    return gymnasium.wrappers.TimeLimit(env, limit) if limit else env


def _spec(env_name: str) -> gymnasium.envs.registration.EnvSpec:
    try:
        if ":" in env_name:
            importlib.import_module(env_name.split(":")[0])
        return gymnasium.spec(env_name.rpartition(":")[2])
    except (gymnasium.error.NamespaceNotFound, ModuleNotFoundError) as error:
        raise missing(env_name, error) from error
    except gymnasium.error.Error as error:
        raise UnsupportedEnvironment(f"env_name {env_name!r}: {str(error).splitlines()[0]}") from error


def _listed(copies: list) -> str:
    return ", ".join(str(copy) for copy in copies)
