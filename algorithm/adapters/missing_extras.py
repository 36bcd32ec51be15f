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

from algorithm.adapters.adapter import EnvironmentFailed, UnsupportedEnvironment
from algorithm.errors import summarize

Name = str | Callable[..., Any]

OF_MODULES = {
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
OF_NAMESPACES = {"ALE": "atari", "MinAtar": "minatar", "dm_control": "dm-control"}
OF_GYMNASIUM = {"mujoco": "mujoco", "box2d": "box2d", "classic_control": "render"}  # by the module below gymnasium.envs
# Namespaces that other env_types than GYM open.
TYPES = {"ALE": "ATARI", "dm_control": "DM_CONTROL", **dict.fromkeys(("butterfly", "classic", "sisl"), "PETTINGZOO")}
PACKAGES = {"MiniGrid": "minigrid"}  # of namespaces, for pip
PACKAGES_OF_MODULES = {"cv2": "opencv-python-headless"}  # for pip, of modules that wrappers import


@contextmanager
def starting(env_name: Name) -> Iterator[None]:
    """Whatever a simulator raises when it starts is EnvironmentFailed, or UnsupportedEnvironment if it is missing."""
    try:
        yield
    except (EnvironmentFailed, UnsupportedEnvironment):
        raise
    except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        raise missing(env_name, error) from error
    except (Exception, SystemExit) as error:
        raise EnvironmentFailed(describe(env_name, "does not start", error)) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Without warnings of how a simulator writes its spaces, or that it has no screen: there is nothing to do about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def describe(env_name: Name, what: str, error: BaseException) -> str:
    """One line that says what went wrong with which environment."""
    return f"the environment {name_of(env_name)!r} {what}: {summarize(error)}"


def name_of(env_name: Name) -> str:
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


def missing(env_name: Name, error: Exception) -> UnsupportedEnvironment:
    """Of an environment that needs a package."""
    absent = getattr(error.__cause__ or error, "name", None) or ""
    extra = _extra(name_of(env_name), absent.partition(".")[0])
    if extra:
        reason = _line(error.__cause__ or error)
        return UnsupportedEnvironment(
            f'the environment {name_of(env_name)!r} needs the extra {extra} ({reason}): pip install -e ".[{extra}]"'
        )
    line = _line(error)
    package = getattr(error, "name", None) or PACKAGES.get(_namespace(name_of(env_name)))
    if package and "pip install" not in line:
        line += f"; pip install {package}"
    return UnsupportedEnvironment(f"the environment {name_of(env_name)!r} needs a package: {line}")


def package_for(error: BaseException) -> str | None:
    """Return pip's name of the package with the module whose absence caused `error`; None for any other error."""
    cause = error.__cause__ if isinstance(error.__cause__, ModuleNotFoundError) else error
    module = cause.name if isinstance(cause, ModuleNotFoundError) else None
    return None if module is None or "." in module else PACKAGES_OF_MODULES.get(module, module)


def load_callable(path: str) -> Callable[..., Any]:
    """Import what `module:name` names. Raises UnsupportedEnvironment if the module has no such function or class."""
    module, _, name = path.partition(":")
    found = getattr(import_module(module), name, None)
    if not callable(found):
        raise UnsupportedEnvironment(f"{module} has no function or class {name!r}")
    return found


def env_type_of(env_name: str) -> str:
    """Return the env_type that opens an id."""
    return TYPES.get(env_name.partition("/")[0], "GYM")


def refuse_other_types(env_name: str) -> None:
    """Raises UnsupportedEnvironment, naming its env_type, for an id that is not Gymnasium's to find."""
    env_type = env_type_of(env_name)
    if env_type != "GYM":
        raise UnsupportedEnvironment(
            f"env_name {env_name!r} is one of env_type {env_type}: set base_config.env_type to {env_type}"
        )


def named(env_name: Name, env_type: str) -> str:
    """`env_name` where it is a name. Raises UnsupportedEnvironment for a function, as of an env.py."""
    if callable(env_name):
        raise UnsupportedEnvironment(
            f"env_type {env_type} takes a name; an environment of one's own is of env_type GYM"
        )
    return env_name


def _extra(env_name: str, module: str) -> str | None:
    """The extra of this project that holds what an environment, or one of Gymnasium's own, lacks."""
    spec = gymnasium.registry.get(env_name.rpartition(":")[2])
    place = re.match(r"gymnasium\.envs\.(\w+)", str(spec.entry_point)) if spec else None
    own = OF_GYMNASIUM.get(place[1]) if place else None
    return OF_MODULES.get(module) or OF_NAMESPACES.get(_namespace(env_name)) or own


def _line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def _namespace(env_name: str) -> str:
    return env_name.rpartition(":")[2].partition("/")[0]
