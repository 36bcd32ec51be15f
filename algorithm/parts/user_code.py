"""The code in the folder of an environment or a run, nn.py and env.py: import it, and locate its errors."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from algorithm.atomic_io import resolve_inside
from algorithm.errors import UserError, is_stop, summarize_error

if TYPE_CHECKING:  # the errors of commands that need no network are located without torch
    from algorithm.networks import Blueprint

MODULE_PREFIX = "samara_environment_"  # of the names of the imported modules


def has_file(path: Path) -> bool:
    """Return whether a file exists. Raises UserError if it is a folder."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; expected a file")
    return path.is_file()


def find_network_file(folder: Path, name: str) -> Path:
    """Return the path of the network's file, `base_config.nn`. Raises UserError if it is outside of the folder."""
    return _resolve_file(folder, name, "base_config.nn")


def load_blueprint(folder: Path, name: str, arguments: Mapping[str, Any]) -> Blueprint | None:
    """Return the blueprint in the network's file of a folder; None if there is no nn.py.

    Args:
        folder: The folder of the environment, or of a run.
        name: The setting `base_config.nn`.
        arguments: The settings `nn_config`.

    Raises:
        UserError: The file cannot be used, or is another one than nn.py and does not exist.
    """
    from algorithm.networks import Blueprint

    path = find_network_file(folder, name)
    if not has_file(path):
        if name != "nn.py":
            raise UserError(f"base_config.nn: there is no {name} in {folder}")
        if arguments:
            raise UserError(f"nn_config: there is no nn.py in {folder} whose blueprint would take it")
        return None
    blueprint = getattr(import_file(path), "blueprint", None)
    if callable(blueprint):
        try:
            inspect.signature(blueprint).bind(**arguments)
        except (TypeError, ValueError) as error:
            raise UserError(f"nn_config does not fit {path}: {error}") from error
        with _locate_errors(path):
            blueprint = blueprint(**arguments)
    elif arguments:
        raise UserError(f"nn_config: blueprint in {path} takes no arguments, since it is not a function")
    if not isinstance(blueprint, Blueprint):
        raise UserError(f"{path}: expected `blueprint`, a Blueprint or a function that returns one")
    return blueprint


def load_environment(folder: Path, name: str | None) -> str | Callable[..., Any]:
    """Return the id of the environment, or the function `make` of the folder's env.py; `name` is the setting env_name.

    Raises UserError if there is no environment, or its file cannot be used.
    """
    if name is None:
        raise UserError("base_config.env_name is not set: name the environment, for example CartPole-v1")
    if not name.endswith(".py"):
        return name
    path = _resolve_file(folder, name, "base_config.env_name")
    if not has_file(path):
        raise UserError(f"base_config.env_name: there is no {name} in the environment's folder")
    return FileMaker(path)


class FileMaker:
    """The function `make` of an env.py.

    A worker process imports the file again instead of unpickling the function, which would lose the names of files in
    tracebacks.

    Raises:
        UserError: The file has no function `make`, or cannot be imported.
    """

    def __init__(self, path: Path):
        self._path = path.absolute()  # an environment may change the working directory
        make = getattr(import_file(path), "make", None)
        if not callable(make):
            raise UserError(f"{path}: expected a function make(**env_args) that returns a gymnasium.Env")
        functools.update_wrapper(self, make)
        self._make = make

    def __call__(self, **env_args: Any) -> Any:
        """Return the environment."""
        return self._make(**env_args)

    def __reduce__(self) -> tuple[type[FileMaker], tuple[Path]]:
        """Return the arguments that import the file again."""
        return FileMaker, (self._path,)


def _resolve_file(folder: Path, name: str, setting: str) -> Path:
    """Return the path of a file that `setting` names. Raises UserError if it is outside of the folder."""
    try:
        return resolve_inside(folder, Path(name))
    except ValueError as error:
        raise UserError(f"{setting}: {name} is not allowed: {error}") from error


@contextmanager
def _locate_errors(path: Path) -> Iterator[None]:
    """Raise UserError with file and line for any error of the user's code in a file."""
    try:
        yield
    except BaseException as error:  # user code may raise anything
        if is_stop(error):
            raise
        raise locate_error(path, error) from error


def import_file(path: Path) -> ModuleType:
    """Import a file of an environment's folder. Raises UserError if that fails."""
    spec = importlib.util.spec_from_file_location(f"{MODULE_PREFIX}{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their annotations there
    try:
        with _locate_errors(path):
            spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]  # other processes could not import what refers to it
    return module


def locate_error(path: Path, error: BaseException) -> UserError:
    """Return the error as one line that names the file `path`, and where in it the error came from."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == path.resolve()]
    if not lines:
        return UserError(f"{path}: {summarize_error(error)}")
    what = summarize_error(error) if str(error) else type(error).__name__
    return UserError(f"{path}, line {lines[-1]}: {what}")


def explain_network_error(path: Path, error: Exception) -> BaseException:
    """Return a UserError for an error that was raised when the network of the file `path` was built."""
    user_error = find_user_error(error)
    if user_error is not error:
        return user_error
    # The text of a ValueError is enough: a setting does not fit the network, or the network does not fit the task.
    return UserError(str(error)) if isinstance(error, ValueError) else locate_error(path, error)


def find_user_error(error: BaseException) -> BaseException:
    """Return a UserError that names file and line if `error` passed through imported files; otherwise `error`."""
    is_own = type(error).__module__.startswith("algorithm.")
    if is_own or not isinstance(error, Exception):
        return error
    files = [
        frame.f_code.co_filename
        for frame, _ in traceback.walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__", "").startswith(MODULE_PREFIX)
    ]
    return locate_error(Path(files[-1]), error) if files else error
