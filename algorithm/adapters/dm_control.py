"""The DeepMind Control Suite, through Shimmy."""

from __future__ import annotations

import re
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv

from algorithm.adapters.adapter import EnvConfig, UnsupportedEnvironment
from algorithm.adapters.gym import GymAdapter
from algorithm.adapters.missing_extras import convert_start_errors, require_env_name, suppress_warnings
from algorithm.adapters.vector import limit_episode_steps, make_sync_or_async, split_env_args


def make_dm_control(config: EnvConfig) -> VectorEnv:
    """Return a vector environment of one task, `cartpole-swingup` or `dm_control/cartpole-swingup-v0`.

    `args` are those of `dm_control.suite.load`, `vectorization_mode` (sync or async) and `vector_kwargs`.
    Raises what `GymAdapter` raises.
    """
    env_name = require_env_name(config.name, "DM_CONTROL")
    name = re.sub(r"-v\d+$", "", env_name.removeprefix("dm_control/"))
    with convert_start_errors(f"dm_control/{name}"):
        suite, _ = _import_packages()
    tasks = {f"{domain}-{task}": (domain, task) for domain, task in suite.ALL_TASKS}
    name = next((task for task in tasks if task.replace("-", "_") == name.replace("-", "_")), name)
    if name not in tasks:
        similar = ", ".join(get_close_matches(name, tasks, 3)) or ", ".join(tasks)
        raise UnsupportedEnvironment(
            f"env_name {env_name!r} is no task of the DeepMind Control Suite; near are {similar}"
        )
    mode, _, _ = split_env_args(config.args)
    if mode not in ("sync", "async", None):
        raise UnsupportedEnvironment(f"env_args.vectorization_mode {mode!r} is neither sync nor async")
    make = partial(limit_episode_steps, partial(_load, *tasks[name]), config.max_episode_steps)
    return make_sync_or_async(replace(config, name=f"dm_control/{name}"), make)


DmControlAdapter = partial(GymAdapter, make=make_dm_control)


def _load(domain: str, task: str, /, render_mode: str | None = None, **env_args: Any) -> gymnasium.Env:
    suite, wrapper = _import_packages()
    return wrapper(suite.load(domain, task, **env_args), render_mode)


def _import_packages() -> tuple[Any, Any]:
    """The suite, and Shimmy's wrapper that makes a Gymnasium environment of a task."""
    with suppress_warnings():
        from dm_control import suite
        from shimmy.dm_control_compatibility import DmControlCompatibilityV0
    return suite, DmControlCompatibilityV0
