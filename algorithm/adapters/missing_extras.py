"""What goes wrong when a simulator starts, in one line; what is missing is told by this project's own extra."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any

import gymnasium

from algorithm.adapters.adapter import EnvironmentStartError, UnsupportedEnvironment
from algorithm.errors import summarize_error

EnvName = str | Callable[..., Any]

EXTRAS_BY_MODULE = {
    "ale_py": "atari",
    "cv2": "atari",
    "dm_control": "dm-control",
    "envpool": "envpool",
    "minatar": "minatar",
    "pettingzoo": "pettingzoo",
    "pybullet": "pybullet",
    "pybullet_envs_gymnasium": "pybullet",
    "shimmy": "dm-control",
}
EXTRAS_BY_NAMESPACE = {"ALE": "atari", "MinAtar": "minatar", "dm_control": "dm-control"}
EXTRAS_BY_SUBMODULE = {
    "mujoco": "mujoco",
    "box2d": "box2d",
    "classic_control": "render",
}  # by the module below gymnasium.envs
# Namespaces that other env_types than GYM open.
ENV_TYPES = {
    "ALE": "ATARI",
    "dm_control": "DM_CONTROL",
    **dict.fromkeys(("butterfly", "classic", "sisl"), "PETTINGZOO"),
}
PACKAGES_BY_NAMESPACE = {"MiniGrid": "minigrid"}  # of namespaces, for pip
PACKAGES_BY_MODULE = {"cv2": "opencv-python-headless"}  # for pip, of modules that wrappers import


@contextmanager
def convert_start_errors(env_name: EnvName) -> Iterator[None]:
    """Whatever a simulator raises when it starts is EnvironmentStartError, or UnsupportedEnvironment if it is missing."""
    try:
        yield
    except (EnvironmentStartError, UnsupportedEnvironment):
        raise
    except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        raise make_missing_error(env_name, error) from error
    except (Exception, SystemExit) as error:
        raise EnvironmentStartError(describe_error(env_name, "does not start", error)) from error


@contextmanager
def suppress_warnings() -> Iterator[None]:
    """Without warnings of how a simulator writes its spaces, or that it has no screen: there is nothing to do about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def describe_error(env_name: EnvName, what: str, error: BaseException) -> str:
    """One line that says what went wrong with which environment."""
    return f"the environment {get_env_name(env_name)!r} {what}: {summarize_error(error)}"


def get_env_name(env_name: EnvName) -> str:
    """Return the name of an environment; for a function or a class that makes it, the file that it is in."""
    if not callable(env_name):
        return env_name
    while isinstance(env_name, partial):
        env_name = env_name.func
    kind = env_name if inspect.isclass(env_name) else type(env_name)
    # inspect finds the file of a class by the name of its module, and a file of an environment's folder has none.
    for part in (env_name, *vars(kind).values()):
        if inspect.isfunction(part):
            return part.__code__.co_filename
    return getattr(env_name, "__name__", kind.__name__)


def make_missing_error(env_name: EnvName, error: Exception) -> UnsupportedEnvironment:
    """Of an environment that needs a package."""
    module = getattr(error.__cause__ or error, "name", None) or ""
    extra = _find_extra(get_env_name(env_name), module.partition(".")[0])
    if extra:
        reason = _first_line(error.__cause__ or error)
        return UnsupportedEnvironment(
            f'the environment {get_env_name(env_name)!r} needs the extra {extra} ({reason}): pip install -e ".[{extra}]"'
        )
    message = _first_line(error)
    package = getattr(error, "name", None) or PACKAGES_BY_NAMESPACE.get(_get_namespace(get_env_name(env_name)))
    if package and "pip install" not in message:
        message += f"; pip install {package}"
    return UnsupportedEnvironment(f"the environment {get_env_name(env_name)!r} needs a package: {message}")


def find_package(error: BaseException) -> str | None:
    """Return pip's name of the package with the module whose absence caused `error`; None for any other error."""
    cause = error.__cause__ if isinstance(error.__cause__, ModuleNotFoundError) else error
    module = cause.name if isinstance(cause, ModuleNotFoundError) else None
    return None if module is None or "." in module else PACKAGES_BY_MODULE.get(module, module)


def load_callable(path: str) -> Callable[..., Any]:
    """Import what `module:name` names. Raises UnsupportedEnvironment if the module has no such function or class."""
    module, _, name = path.partition(":")
    function = getattr(import_module(module), name, None)
    if not callable(function):
        raise UnsupportedEnvironment(f"{module} has no function or class {name!r}")
    return function


def find_env_type(env_name: str) -> str:
    """Return the env_type that opens an id."""
    return ENV_TYPES.get(env_name.partition("/")[0], "GYM")


def check_env_type(env_name: str) -> None:
    """Raises UnsupportedEnvironment, naming its env_type, for an id that is not Gymnasium's to find."""
    env_type = find_env_type(env_name)
    if env_type != "GYM":
        raise UnsupportedEnvironment(
            f"env_name {env_name!r} is one of env_type {env_type}: set base_config.env_type to {env_type}"
        )


def require_env_name(env_name: EnvName, env_type: str) -> str:
    """`env_name` where it is a name. Raises UnsupportedEnvironment for a function, as of an env.py."""
    if callable(env_name):
        raise UnsupportedEnvironment(
            f"env_type {env_type} takes a name; an environment of one's own is of env_type GYM"
        )
    return env_name


def _find_extra(env_name: str, module: str) -> str | None:
    """The extra of this project that holds what an environment, or one of Gymnasium's own, lacks."""
    spec = gymnasium.registry.get(env_name.rpartition(":")[2])
    submodule = re.match(r"gymnasium\.envs\.(\w+)", str(spec.entry_point)) if spec else None
    submodule_extra = EXTRAS_BY_SUBMODULE.get(submodule[1]) if submodule else None
    return EXTRAS_BY_MODULE.get(module) or EXTRAS_BY_NAMESPACE.get(_get_namespace(env_name)) or submodule_extra


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def _get_namespace(env_name: str) -> str:
    return env_name.rpartition(":")[2].partition("/")[0]
