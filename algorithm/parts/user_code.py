"""The code in the folder of an environment or a run, nn.py and env.py: import and write it, and locate its errors."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import sys
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from algorithm.atomic_io import resolve_inside
from algorithm.errors import UserError, is_stop, summarize_error

if TYPE_CHECKING:  # the errors of commands that need no network are located without torch
    from algorithm.networks import Blueprint

NETWORK_FILE = "nn.py"
MODULE_PREFIX = "samara_environment_"  # of the names of the imported modules


def has_file(path: Path) -> bool:
    """Return whether a file exists. Raises UserError if it is a folder."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; expected a file")
    return path.is_file()


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

    path = resolve_file(folder, name, "base_config.nn")
    if not has_file(path):
        if name != NETWORK_FILE:
            raise UserError(f"base_config.nn: there is no {name} in {folder}")
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
    path = resolve_file(folder, name, "base_config.env_name")
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


def resolve_file(folder: Path, name: str, setting: str) -> Path:
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


def write_env_file(folder: Path, make: Callable[..., Any]) -> None:
    """Write an env.py that imports `make`; none for a function that cannot be imported."""
    if origin := _find_import(make):
        text = f'"""The environment of this run."""\n\nfrom {origin[0]} import {origin[1]} as make  # noqa: F401\n'
        (folder / "env.py").write_text(text, encoding="utf-8")


def write_network_file(folder: Path, blueprint: Blueprint | Callable[..., Any]) -> None:
    """Write an nn.py with a Blueprint, or one that imports the function `blueprint`.

    Raises:
        UserError: the blueprint is neither, or contains a part that cannot be imported.
    """
    from algorithm.networks import Blueprint

    if not isinstance(blueprint, Blueprint) and (origin := _find_import(blueprint)):
        lines = [f"from {origin[0]} import {origin[1]} as blueprint  # noqa: F401"]
    else:
        made = blueprint() if inspect.isfunction(blueprint) else blueprint
        if not isinstance(made, Blueprint):
            raise UserError(f"blueprint is a {type(made).__name__}: pass a Blueprint, or a function that returns one")
        writer = _SourceWriter()
        definition = f"blueprint = {writer.format(made)}"
        lines = [f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(writer.imports.items())]
        lines += ["", definition]
    text = '"""The network of this run."""\n\n' + "\n".join(lines) + "\n"
    (folder / NETWORK_FILE).write_text(text, encoding="utf-8")


class _SourceWriter:
    """A writer of the factories of a blueprint as Python code; `imports` are the names that it needs, by module.

    A factory is an object that keeps each argument of its class as an attribute of this name, or a function.
    """

    def __init__(self) -> None:
        self.imports: dict[str, set[str]] = defaultdict(set)

    def format(self, value: Any) -> str:
        """Return the code of a factory, or of an argument of a factory."""
        if value is None or isinstance(value, bool | int | float | str):
            return repr(value)
        if isinstance(value, tuple | list):
            items = "".join(f"{self.format(item)}, " for item in value)
            return f"({items})" if isinstance(value, tuple) else f"[{items}]"
        if isinstance(value, Mapping):
            return f"{{{', '.join(f'{key!r}: {self.format(item)}' for key, item in value.items())}}}"
        if inspect.isfunction(value) or inspect.isclass(value):
            return self._import(value)
        return f"{self._import(type(value))}({', '.join(self._format_arguments(value))})"

    def _format_arguments(self, factory: Any) -> list[str]:
        """Return the arguments that make an equal factory, without those that have their default."""
        arguments = []
        for name, parameter in inspect.signature(type(factory)).parameters.items():
            if not hasattr(factory, name):
                raise UserError(
                    f"blueprint: {type(factory).__name__} does not keep its argument {name} as an attribute, so it "
                    f"cannot be written to {NETWORK_FILE}: pass a function of a module, which is imported"
                )
            value = getattr(factory, name)
            if parameter.kind is parameter.VAR_POSITIONAL:
                arguments += [self.format(item) for item in value]
            elif value != parameter.default:
                arguments.append(f"{name}={self.format(value)}")
        return arguments

    def _import(self, thing: Any) -> str:
        """Return the name of a function or class, which the code imports."""
        from algorithm import networks

        own = (networks.__name__, thing.__name__)
        origin = own if getattr(networks, thing.__name__, None) is thing else _find_import(thing)
        if origin is None:
            raise UserError(
                f"blueprint: {thing.__qualname__} cannot be imported by the processes that load the run: define it in "
                "a module, not in the program itself or inside a function"
            )
        self.imports[origin[0]].add(origin[1])
        return origin[1]


def _find_import(thing: Any) -> tuple[str, str] | None:
    """Return module and name by which another process can import a function or class; None if it cannot."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", "")
    if module in (None, "__main__") or not name.isidentifier():
        return None
    return (module, name) if getattr(sys.modules.get(module), name, None) is thing else None
