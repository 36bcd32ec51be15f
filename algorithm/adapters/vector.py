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
from algorithm.adapters.env_modules import add_module_prefix
from algorithm.adapters.env_plugins import register_plugins
from algorithm.adapters.envpool import EnvPoolVectorEnv
from algorithm.adapters.missing_extras import check_env_type, convert_start_errors, make_missing_error
from algorithm.adapters.wrappers.env_wrappers import Wrappers, apply_wrappers, reject_wrappers
from algorithm.adapters.wrappers.fault_tolerant import EnvFactory

EnvMaker = Callable[..., gymnasium.Env]

NATIVE_MIN_ENVS = 5  # copies from which a native vector environment is faster than SyncVectorEnv (measured on CartPole)
GRACE_SECONDS = 5.0  # seconds that processes have to end by themselves


def make_vector(config: EnvConfig) -> VectorEnv:
    """A vector environment as `GymAdapter` describes it. Raises what `GymAdapter` raises."""
    name = config.name
    if callable(name):
        return make_from_function(config, name)
    spec = _find_spec(name)
    limit_args: dict[str, Any] = {"max_episode_steps": config.max_episode_steps} if config.max_episode_steps else {}
    use_native = spec.vector_entry_point is not None and config.n_envs >= NATIVE_MIN_ENVS and not config.wrappers
    use_native = use_native and not config.args.get("vector_kwargs")
    mode = config.args.get("vectorization_mode", "vector_entry_point" if use_native else "sync")
    if config.render or mode in ("sync", "async"):
        return make_sync_or_async(config, partial(gymnasium.make, spec, **limit_args))
    _, vector_kwargs, env_args = split_env_args({**config.args, **limit_args})
    reject_wrappers(config, f"vectorization_mode {mode}")
    reject_timeout(config.timeout)
    with convert_start_errors(name):
        if mode == "envpool":
            return EnvPoolVectorEnv(spec.id, config.n_envs, {**env_args, **vector_kwargs})
        return gymnasium.make_vec(name, config.n_envs, mode, vector_kwargs=vector_kwargs, **env_args)


def make_from_function(config: EnvConfig, make: EnvMaker) -> VectorEnv:
    """Return the environments of `make` in an env.py: single ones, or one vector environment if it takes `num_envs`.

    Raises what `GymAdapter` raises.
    """
    parameters = inspect.signature(make).parameters
    if "num_envs" not in parameters:
        return make_sync_or_async(config, partial(limit_episode_steps, make, config.max_episode_steps))
    reject_wrappers(config, "a VectorEnv of env.py")
    reject_timeout(config.timeout)
    env_args: dict[str, Any] = {**config.args, "num_envs": config.n_envs}
    if config.max_episode_steps:
        if "max_episode_steps" not in parameters:
            raise UnsupportedEnvironment(
                "max_step_each_iter: a VectorEnv limits its own episodes; give make of env.py a max_episode_steps"
            )
        env_args["max_episode_steps"] = config.max_episode_steps
    if config.render:
        env_args["render_mode"] = "human"
    with convert_start_errors(make):
        env = make(**env_args)
    if not isinstance(env, VectorEnv) or env.num_envs != config.n_envs:
        found = f"one of {env.num_envs}" if isinstance(env, VectorEnv) else type(env).__name__
        raise UnsupportedEnvironment(
            f"make(num_envs={config.n_envs}) of env.py must return a gymnasium.vector.VectorEnv of as many "
            f"environments; it returned {found}"
        )
    return env


def make_sync_or_async(config: EnvConfig, make: EnvMaker) -> VectorEnv:
    """Return guarded environments that `make` makes with `args`: in this process (sync), or each in its own (async).

    Error messages name them `name`. Raises what `GymAdapter` raises.
    """
    mode, vector_kwargs, env_args = split_env_args(config.args)
    timeout = config.timeout
    if config.render:
        mode, timeout, env_args = "sync", None, {**env_args, "render_mode": "human"}
    factories = [EnvFactory(partial(_make_wrapped, partial(make, **env_args), tuple(config.wrappers)))] * config.n_envs
    with convert_start_errors(config.name):
        if mode == "async":
            # An observation that is ignored may have a space that shared memory does not support.
            return TimeoutAsyncVectorEnv(
                factories, timeout, **{"shared_memory": not config.ignore_observations, **vector_kwargs}
            )
        reject_timeout(timeout)
        # Whoever keeps an observation copies it.
        return SyncVectorEnv(factories, **{"copy": False, **vector_kwargs})


def split_env_args(env_args: Mapping[str, Any]) -> tuple[str | None, dict, dict]:
    """How an environment is vectorized, with which arguments, and the arguments of the environment itself."""
    remaining = dict(env_args)
    return remaining.pop("vectorization_mode", None), remaining.pop("vector_kwargs", {}), remaining


def limit_episode_steps(make: EnvMaker, limit: int | None, /, **env_args: Any) -> gymnasium.Env:
    """What `make` makes, with episodes of `limit` steps at most."""
    env = make(**env_args)
    return gymnasium.wrappers.TimeLimit(env, limit) if limit else env


def _make_wrapped(make: EnvMaker, wrappers: Wrappers) -> gymnasium.Env:
    env = make()
    if isinstance(env, VectorEnv):
        raise UnsupportedEnvironment("make of env.py returns a VectorEnv, so that it must have a parameter num_envs")
    return apply_wrappers(env, wrappers)


def reject_timeout(timeout: float | None) -> None:
    """Raises UnsupportedEnvironment where there are no processes to wait for."""
    if timeout is not None:
        raise UnsupportedEnvironment(
            f"env_timeout is {timeout:g}, but only processes can be given up: set env_args.vectorization_mode to async"
        )


class TimeoutAsyncVectorEnv(AsyncVectorEnv):
    """Spawned processes that are waited for `timeout` seconds at most; ending them never hangs.

    `step` and `reset` raise RuntimeError, naming the copies, where processes ended or did not answer in time.
    """

    def __init__(self, factories: list[EnvFactory], timeout: float | None, **vector_kwargs: Any):
        self.timeout = timeout
        self.grace = GRACE_SECONDS
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

    def _wait(self, send: Callable[[], None], receive: Callable[[float | None], Any]) -> Any:
        try:
            send()
            return receive(self.timeout)
        except multiprocessing.TimeoutError as error:
            self.grace = 0.0
            late = [index for index, pipe in enumerate(self.parent_pipes) if not pipe.poll()]
            raise RuntimeError(f"no answer of copy {_join_indices(late)} within {self.timeout:g} s") from error
        except (EOFError, OSError) as error:
            for process in self.processes:
                process.join(0.2)
            ended = [f"{i} (exit code {p.exitcode})" for i, p in enumerate(self.processes) if not p.is_alive()]
            raise RuntimeError(f"the process has ended of copy {_join_indices(ended)}") from error

    def _raise_if_errors(self, successes: Iterable[bool]) -> None:
        """Without the traceback on standard error."""
        if not all(successes):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                super()._raise_if_errors(successes)


def _find_spec(env_name: str) -> gymnasium.envs.registration.EnvSpec:
    check_env_type(env_name)
    module, _, name = env_name.rpartition(":")
    try:
        if module:
            importlib.import_module(module)
        register_plugins(name.rpartition("/")[0])
        return gymnasium.spec(name)
    except (gymnasium.error.NamespaceNotFound, ModuleNotFoundError) as error:
        raise make_missing_error(env_name, error) from error
    except gymnasium.error.Error as error:
        full = add_module_prefix(env_name)
        hint = f" Its module registers it: use {full}" if full else ""
        raise UnsupportedEnvironment(f"env_name {env_name!r}: {str(error).splitlines()[0]}{hint}") from error


def _join_indices(indices: list) -> str:
    return ", ".join(str(index) for index in indices)
