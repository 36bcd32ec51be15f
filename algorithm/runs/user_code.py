"""The files of an environment's folder, nn.py and env.py, and the errors that come from them."""

from __future__ import annotations

import importlib.util
import traceback
from pathlib import Path
from types import ModuleType

from algorithm.errors import UserError, summarize_error

MODULE_PREFIX = "samara_environment_"  # before the names of their modules


def has_file(path: Path) -> bool:
    """Return whether there is such a file. Raises UserError for a folder of that name."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; expected a file")
    return path.is_file()


def import_file(path: Path) -> ModuleType:
    """Import a file of an environment's folder. Raises UserError if that fails."""
    spec = importlib.util.spec_from_file_location(f"{MODULE_PREFIX}{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # user code may raise anything
        raise locate_error(path, error) from error
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
    """Return a UserError for what building the network of `path` raised."""
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
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    files = [
        frame.f_code.co_filename for frame in frames if frame.f_globals.get("__name__", "").startswith(MODULE_PREFIX)
    ]
    return locate_error(Path(files[-1]), error) if files else error
