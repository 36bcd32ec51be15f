"""Errors of environments as messages of one line; a missing package is named with the extra that installs it."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import gymnasium

from algorithm.adapters.adapter import (
    EnvironmentCrashed,
    EnvironmentStartError,
    SimulatorError,
    UnsupportedEnvironment,
)
from algorithm.errors import is_stop, summarize_error
from algorithm.program import get_install_command

EnvName = str | Callable[..., Any]  # an id, or the function `make` of an env.py

EXTRAS_BY_MODULE = {
    "ale_py": "atari",
    "cv2": "atari",
    "dm_control": "dm-control",
    "envpool": "envpool",
    "minatar": "minatar",
    "minigrid": "minigrid",
    "pettingzoo": "pettingzoo",
    "pybullet": "pybullet",
    "pybullet_envs_gymnasium": "pybullet",
    "shimmy": "dm-control",
}
EXTRAS_BY_NAMESPACE = {"ALE": "atari", "MinAtar": "minatar", "dm_control": "dm-control"}
EXTRAS_BY_GYMNASIUM_MODULE = {"box2d": "box2d", "classic_control": "render", "mujoco": "mujoco"}  # gymnasium.envs.<key>


@contextmanager
def convert_start_errors(env_name: EnvName) -> Iterator[None]:
    """Convert the exceptions that an environment raises when it starts.

    Raises:
        UnsupportedEnvironment: A package is missing.
        EnvironmentStartError: Anything else was raised.
    """
    try:
        yield
    except (SimulatorError, UnsupportedEnvironment):
        raise
    except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        raise make_missing_error(env_name, error) from error
    except BaseException as error:
        if is_stop(error):
            raise
        raise EnvironmentStartError(describe_error(env_name, "does not start", error)) from error


@contextmanager
def convert_crashes(env_name: EnvName) -> Iterator[None]:
    """Convert the exceptions that an environment raises after its start to EnvironmentCrashed."""
    try:
        yield
    except BaseException as error:  # an environment may raise any exception
        if is_stop(error):
            raise
        raise EnvironmentCrashed(describe_error(env_name, "crashed", error)) from error


@contextmanager
def suppress_warnings() -> Iterator[None]:
    """Suppress warnings about deprecated spaces or a missing display, which a user cannot act on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def describe_error(env_name: EnvName, problem: str, error: BaseException) -> str:
    """Return one line: the environment, the problem (a verb phrase such as "crashed") and the error."""
    return f"the environment {get_env_name(env_name)!r} {problem}: {summarize_error(error)}"


def get_env_name(env_name: EnvName) -> str:
    """Return the name of an environment; for a function or a class that makes it, the file that defines it."""
    if not callable(env_name):
        return env_name
    while isinstance(env_name, partial) or hasattr(env_name, "__wrapped__"):
        env_name = env_name.func if isinstance(env_name, partial) else env_name.__wrapped__
    kind = env_name if inspect.isclass(env_name) else type(env_name)
    # inspect.getfile looks up the module of a class in sys.modules, which does not contain an env.py.
    for part in (env_name, *vars(kind).values()):
        if inspect.isfunction(part):
            return part.__code__.co_filename
    return getattr(env_name, "__name__", kind.__name__)


def require_env_name(env_name: EnvName, env_type: str) -> str:
    """Return `env_name` if it is a name. Raises UnsupportedEnvironment for a function, as in an env.py."""
    if callable(env_name):
        raise UnsupportedEnvironment(
            f"env_type {env_type} needs a name as env_name, not an env.py; use env_type GYM for an env.py"
        )
    return env_name


def make_missing_error(env_name: EnvName, error: Exception) -> UnsupportedEnvironment:
    """Return the error for a missing package, which names the extra or the package to install.

    `error` is the exception, or a wrapper of the exception, that the failed import raised.
    """
    name = get_env_name(env_name)
    return UnsupportedEnvironment(f"the environment {name!r} {describe_missing(name, error)}")


def describe_missing(name: str, error: Exception) -> str:
    """Return what an environment or a wrapper needs whose package is missing, as the predicate of a sentence."""
    module = getattr(error.__cause__ or error, "name", None) or ""
    if extra := _find_extra(name, module.partition(".")[0]):
        reason = str(error.__cause__ or error).partition("\n")[0]
        return f"needs the extra {extra} ({reason}): {get_install_command(extra)}"
    message = str(error).partition("\n")[0]
    if isinstance(error, gymnasium.error.NamespaceNotFound) and ":" not in name:
        message += f" If importing a module registers it, name the module: MODULE:{name}"
    if module and "." not in module and "pip install" not in message:
        message += f"; pip install {module}"
    return f"needs a package: {message}"


def _find_extra(env_name: str, module: str) -> str | None:
    """Return the extra with what an environment needs; None if no extra has it. `module` is missing; "" if unknown."""
    env_id = env_name.rpartition(":")[2]
    spec = gymnasium.registry.get(env_id)
    own_module = re.match(r"gymnasium\.envs\.(\w+)", str(spec.entry_point)) if spec else None
    own_extra = EXTRAS_BY_GYMNASIUM_MODULE.get(own_module[1]) if own_module else None
    return EXTRAS_BY_MODULE.get(module) or EXTRAS_BY_NAMESPACE.get(env_id.partition("/")[0]) or own_extra
