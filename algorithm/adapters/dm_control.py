"""The adapter of the DeepMind Control Suite, whose tasks Shimmy converts to environments of Gymnasium."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv

from algorithm.adapters.adapter import EnvConfig, UnsupportedEnvironment
from algorithm.adapters.env_errors import convert_start_errors, require_env_name, suppress_warnings
from algorithm.adapters.gym import GymAdapter
from algorithm.adapters.recording import PIXELS, has_display
from algorithm.adapters.vector import limit_episode_steps, make_sync_or_async, split_env_args


def make_dm_control(config: EnvConfig) -> VectorEnv:
    """Return a vector environment of one task.

    Args:
        config: Its name is for example `cartpole-swingup` or `dm_control/cartpole-swingup-v0`; its `args` are
            `vectorization_mode` (sync or async), `vector_kwargs` and the arguments of `dm_control.suite.load`.

    Raises:
        UnsupportedEnvironment, EnvironmentStartError: As `GymAdapter` raises them.
    """
    env_name = require_env_name(config.name, "DM_CONTROL")
    name = re.sub(r"-v\d+$", "", env_name.removeprefix("dm_control/"))
    if config.render_mode == PIXELS and not has_display():
        os.environ.setdefault("MUJOCO_GL", "off")  # it would try GLFW, whose failure is more than one line
    with convert_start_errors(f"dm_control/{name}"):
        suite, _ = _import_packages()
    tasks = {f"{domain}-{task}": (domain, task) for domain, task in suite.ALL_TASKS}
    name = next((task for task in tasks if task.replace("-", "_") == name.replace("-", "_")), name)
    if name not in tasks:
        similar = ", ".join(get_close_matches(name, tasks, 3) or tasks)
        raise UnsupportedEnvironment(
            f"env_name {env_name!r} is not a task of the DeepMind Control Suite; did you mean {similar}?"
        )
    mode, _, _ = split_env_args(config.args)
    if mode not in ("sync", "async", None):
        raise UnsupportedEnvironment(f"env_args.vectorization_mode {mode!r} is neither sync nor async")
    make = partial(limit_episode_steps, partial(_load_task, *tasks[name]), config.max_episode_steps)
    return make_sync_or_async(replace(config, name=f"dm_control/{name}"), make)


class DmControlAdapter(GymAdapter):
    """An adapter of the DeepMind Control Suite."""

    make = staticmethod(make_dm_control)


def _load_task(domain: str, task: str, /, render_mode: str | None = None, **env_args: Any) -> gymnasium.Env:
    suite, wrapper = _import_packages()
    return wrapper(suite.load(domain, task, **env_args), render_mode)


def _import_packages() -> tuple[Any, Any]:
    """Return the module `dm_control.suite`, and Shimmy's class that converts a task to a Gymnasium environment."""
    with suppress_warnings():
        from dm_control import suite
        from shimmy.dm_control_compatibility import DmControlCompatibilityV0
    return suite, DmControlCompatibilityV0
