"""Makers of vector environments: of an id of Gymnasium, and of the function `make` of an env.py."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium
from gymnasium.vector import SyncVectorEnv, VectorEnv

from algorithm.adapters.adapter import EnvConfig, UnsupportedEnvironment
from algorithm.adapters.background_vector import EnvPoolVectorEnv, TimeoutAsyncVectorEnv
from algorithm.adapters.env_errors import convert_start_errors
from algorithm.adapters.env_wrappers import EnvFactory, Wrappers, apply_wrappers, reject_wrappers
from algorithm.adapters.gym_ids import find_spec
from algorithm.adapters.recording import PIXELS, make_recording_makers

EnvMaker = Callable[..., gymnasium.Env]

NATIVE_MIN_ENVS = 5  # environments from which a native vector environment is faster than sync (measured on CartPole)


def make_vector(config: EnvConfig) -> VectorEnv:
    """Return the vector environment of an id or of the function `make` of an env.py.

    Raises:
        UnsupportedEnvironment, EnvironmentStartError: As `GymAdapter` raises them.
    """
    name = config.name
    if callable(name):
        return make_from_function(config, name)
    spec = find_spec(name)
    limit_args: dict[str, Any] = {"max_episode_steps": config.max_episode_steps} if config.max_episode_steps else {}
    use_native = spec.vector_entry_point is not None and config.n_envs >= NATIVE_MIN_ENVS and not config.wrappers
    use_native = use_native and not config.args.get("vector_kwargs")
    mode = config.args.get("vectorization_mode", "vector_entry_point" if use_native else "sync")
    if config.render_mode or mode in ("sync", "async"):
        return make_sync_or_async(config, partial(gymnasium.make, spec, **limit_args))
    _, vector_kwargs, env_args = split_env_args({**config.args, **limit_args})
    reject_wrappers(config, f"vectorization_mode {mode}")
    reject_timeout(config.timeout)
    with convert_start_errors(name):
        if mode == "envpool":
            return EnvPoolVectorEnv(spec.id, config.n_envs, {**env_args, **vector_kwargs})
        return gymnasium.make_vec(name, config.n_envs, mode, vector_kwargs=vector_kwargs, **env_args)


def make_from_function(config: EnvConfig, make: EnvMaker) -> VectorEnv:
    """Return the vector environment of the function `make` of an env.py, whose keyword arguments are `config.args`.

    It returns a single environment, or a vector environment if it has a parameter `num_envs`. Raises what `GymAdapter`
    raises.
    """
    parameters = inspect.signature(make).parameters
    if config.render_mode and not {"render_mode", "kwargs"} & parameters.keys():
        raise UnsupportedEnvironment("make in env.py has no parameter render_mode, so that nothing can be shown")
    if "num_envs" not in parameters:
        return make_sync_or_async(config, partial(limit_episode_steps, make, config.max_episode_steps))
    reject_wrappers(config, "a VectorEnv of env.py")
    reject_timeout(config.timeout)
    if config.render_mode == PIXELS:
        raise UnsupportedEnvironment("videos need single environments: make in env.py returns a VectorEnv")
    if config.max_episode_steps and "max_episode_steps" not in parameters:
        raise UnsupportedEnvironment(
            "max_step_each_iter: a VectorEnv limits its own episodes; add a parameter max_episode_steps to make "
            "in env.py"
        )
    optional = {"max_episode_steps": config.max_episode_steps, "render_mode": config.render_mode}
    with convert_start_errors(make):
        env = make(**config.args, num_envs=config.n_envs, **{key: value for key, value in optional.items() if value})
    if not isinstance(env, VectorEnv) or env.num_envs != config.n_envs:
        found = f"a VectorEnv of {env.num_envs}" if isinstance(env, VectorEnv) else type(env).__name__
        raise UnsupportedEnvironment(
            f"make(num_envs={config.n_envs}) in env.py must return a gymnasium.vector.VectorEnv of {config.n_envs} "
            f"environments; it returned {found}"
        )
    return env


def make_sync_or_async(config: EnvConfig, make: EnvMaker) -> VectorEnv:
    """Return fault-tolerant environments, in this process (sync) or each in a worker process (async).

    `make` returns a single environment. `config.args` contain `vectorization_mode`, `vector_kwargs` and its keyword
    arguments; `config.name` is the name in messages. Raises what `GymAdapter` raises.
    """
    mode, vector_kwargs, env_args = split_env_args(config.args)
    timeout = config.timeout
    if config.render_mode:
        mode, timeout, env_args = "sync", None, {**env_args, "render_mode": config.render_mode}
    make_env = partial(_make_wrapped, partial(make, **env_args), tuple(config.wrappers))
    makers: list[EnvMaker] = [make_env] * config.n_envs
    if config.render_mode == PIXELS:
        makers = make_recording_makers(make_env, config.name, config.n_envs, config.recording)
    factories = [EnvFactory(maker) for maker in makers]
    with convert_start_errors(config.name):
        if mode == "async":
            # The space of an ignored observation may be one that shared memory does not support.
            vector_kwargs = {"shared_memory": not config.ignore_observations, **vector_kwargs}
            return TimeoutAsyncVectorEnv(factories, timeout, config.first_env, **vector_kwargs)
        reject_timeout(timeout)
        # The observations of a Step are valid until the next call, so no copy is needed.
        return SyncVectorEnv(factories, **{"copy": False, **vector_kwargs})


def split_env_args(env_args: Mapping[str, Any]) -> tuple[str | None, dict[str, Any], dict[str, Any]]:
    """Return `vectorization_mode` (None if missing), `vector_kwargs`, and the arguments of the environment itself."""
    remaining = dict(env_args)
    return remaining.pop("vectorization_mode", None), remaining.pop("vector_kwargs", {}), remaining


def limit_episode_steps(make: EnvMaker, limit: int | None, /, **env_args: Any) -> gymnasium.Env:
    """Return the environment that `make` makes, with episodes of at most `limit` steps unless that is None."""
    env = make(**env_args)
    return gymnasium.wrappers.TimeLimit(env, limit) if limit else env


def reject_timeout(timeout: float | None) -> None:
    """Raise UnsupportedEnvironment for a timeout where no worker processes exist."""
    if timeout is not None:
        raise UnsupportedEnvironment(
            f"env_timeout is {timeout:g}, but only worker processes can time out: "
            "set env_args.vectorization_mode to async"
        )


def _make_wrapped(make: EnvMaker, wrappers: Wrappers) -> gymnasium.Env:
    """Return a single environment inside its wrappers; each worker process calls this function."""
    env = make()
    if isinstance(env, VectorEnv):
        raise UnsupportedEnvironment(
            "the function returns a VectorEnv: return a single environment, of which base_config.n_envs are made, or "
            "add a parameter num_envs"
        )
    return apply_wrappers(env, wrappers)
