"""Gymnasium's vector environments: made with guarded copies, waited for as long as asked, ended whatever happened."""

from __future__ import annotations

import importlib
import inspect
import multiprocessing
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

from algorithm.adapters.adapter import EnvConfig, UnsupportedEnvironment
from algorithm.adapters.env_modules import with_module
from algorithm.adapters.env_plugins import register
from algorithm.adapters.envpool import Pool
from algorithm.adapters.missing_extras import missing, refuse_other_types, starting
from algorithm.adapters.wrappers.env_wrappers import Wrappers, refuse_wrappers, wrap
from algorithm.adapters.wrappers.fault_tolerant import Factory

Make = Callable[..., gymnasium.Env]

NATIVE_FROM = 5  # copies from which a native vector environment is faster than SyncVectorEnv (measured on CartPole)
GRACE = 5.0  # seconds that processes have to end by themselves


def make_vector(config: EnvConfig) -> VectorEnv:
    """A vector environment as `GymAdapter` describes it. Raises what `GymAdapter` raises."""
    name = config.name
    if callable(name):
        return make_own(config, name)
    spec = _spec(name)
    limited: dict[str, Any] = {"max_episode_steps": config.max_episode_steps} if config.max_episode_steps else {}
    fast = spec.vector_entry_point is not None and config.n_envs >= NATIVE_FROM and not config.wrappers
    fast = fast and not config.args.get("vector_kwargs")
    how = config.args.get("vectorization_mode", "vector_entry_point" if fast else "sync")
    if config.render or how in ("sync", "async"):
        return make_copies(config, partial(gymnasium.make, spec, **limited))
    _, vector_kwargs, env_args = parted({**config.args, **limited})
    refuse_wrappers(config, f"vectorization_mode {how}")
    refuse_timeout(config.timeout)
    with starting(name):
        if how == "envpool":
            return Pool(spec.id, config.n_envs, {**env_args, **vector_kwargs})
        return gymnasium.make_vec(name, config.n_envs, how, vector_kwargs=vector_kwargs, **env_args)


def make_own(config: EnvConfig, make: Make) -> VectorEnv:
    """Return the environments of `make` in an env.py: single ones, or one vector environment if it takes `num_envs`.

    Raises what `GymAdapter` raises.
    """
    taken = inspect.signature(make).parameters
    if "num_envs" not in taken:
        return make_copies(config, partial(cut, make, config.max_episode_steps))
    refuse_wrappers(config, "a VectorEnv of env.py")
    refuse_timeout(config.timeout)
    env_args: dict[str, Any] = {**config.args, "num_envs": config.n_envs}
    if config.max_episode_steps:
        if "max_episode_steps" not in taken:
            raise UnsupportedEnvironment(
                "max_step_each_iter: a VectorEnv limits its own episodes; give make of env.py a max_episode_steps"
            )
        env_args["max_episode_steps"] = config.max_episode_steps
    if config.render:
        env_args["render_mode"] = "human"
    with starting(make):
        env = make(**env_args)
    if not isinstance(env, VectorEnv) or env.num_envs != config.n_envs:
        found = f"one of {env.num_envs}" if isinstance(env, VectorEnv) else type(env).__name__
        raise UnsupportedEnvironment(
            f"make(num_envs={config.n_envs}) of env.py must return a gymnasium.vector.VectorEnv of as many "
            f"environments; it returned {found}"
        )
    return env


def make_copies(config: EnvConfig, make: Make) -> VectorEnv:
    """Return guarded environments that `make` makes with `args`: in this process (sync), or each in its own (async).

    Error messages name them `name`. Raises what `GymAdapter` raises.
    """
    how, vector_kwargs, env_args = parted(config.args)
    timeout = config.timeout
    if config.render:
        how, timeout, env_args = "sync", None, {**env_args, "render_mode": "human"}
    factories = [Factory(partial(_wrapped, partial(make, **env_args), tuple(config.wrappers)))] * config.n_envs
    with starting(config.name):
        if how == "async":
            # An observation that is ignored may have a space that shared memory does not support.
            return Processes(factories, timeout, **{"shared_memory": not config.ignore_observations, **vector_kwargs})
        refuse_timeout(timeout)
        # Whoever keeps an observation copies it.
        return SyncVectorEnv(factories, **{"copy": False, **vector_kwargs})


def parted(env_args: Mapping[str, Any]) -> tuple[str | None, dict, dict]:
    """How an environment is vectorized, with which arguments, and the arguments of the environment itself."""
    own = dict(env_args)
    return own.pop("vectorization_mode", None), own.pop("vector_kwargs", {}), own


def cut(make: Make, limit: int | None, /, **env_args: Any) -> gymnasium.Env:
    """What `make` makes, with episodes of `limit` steps at most."""
    env = make(**env_args)
    return gymnasium.wrappers.TimeLimit(env, limit) if limit else env


def _wrapped(make: Make, wrappers: Wrappers) -> gymnasium.Env:
    env = make()
    if isinstance(env, VectorEnv):
        raise UnsupportedEnvironment("make of env.py returns a VectorEnv, so that it must have a parameter num_envs")
    return wrap(env, wrappers)


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
        full = with_module(env_name)
        hint = f" Its module registers it: use {full}" if full else ""
        raise UnsupportedEnvironment(f"env_name {env_name!r}: {str(error).splitlines()[0]}{hint}") from error


def _listed(copies: list) -> str:
    return ", ".join(str(copy) for copy in copies)
