"""What the services of a run have in common: the data from which they start, their replies, their exceptions."""

from __future__ import annotations

import logging
import pickle
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeVar

from algorithm.adapters.process_setup import prepare_worker
from algorithm.checkpointing.manifest import Manifest, PackedFolder, pack_folder, unpack_folder
from algorithm.config.loader import Settings
from algorithm.errors import UserError, format_traceback, summarize_error
from algorithm.parts.lock import make_temporary_folder
from algorithm.parts.run_folder import RunFolder
from algorithm.parts.torch_setup import configure_torch
from algorithm.parts.user_code import find_user_error
from algorithm.specs import Role
from algorithm.training.components import AgentComponents


@dataclass(frozen=True)
class LogRecord:
    """A message that was logged in another process, with its level."""

    level: int
    text: str


@dataclass(frozen=True, kw_only=True)
class ServiceReply:
    """A reply of a service; `log` are the messages that were logged in its process since the last one."""

    log: tuple[LogRecord, ...] = ()


class RemoteTraceback(Exception):
    """The traceback of an exception in another process, as text."""


@dataclass(frozen=True)
class Failure:
    """An exception that has ended the work of another process, with its traceback as text."""

    error: BaseException
    trace: str

    @classmethod
    def describe(cls, error: BaseException) -> Failure:
        """Return an exception as one that can be sent, and raised by the main process."""
        return cls(_make_sendable(error), format_traceback(error))

    def raise_error(self) -> NoReturn:
        """Raise the exception, caused by one that shows the traceback in the other process."""
        raise self.error from RemoteTraceback(f"\n{self.trace}")


@dataclass(frozen=True, kw_only=True)
class RunTask:
    """The data from which a service of a run starts on any machine.

    Attributes:
        settings: settings of the run.
        code: the files with code in the run folder.
        make_env: function that opens the environment instead of base_config.env_name, pickled; None without one.
        env_steps: env steps of the run so far, from which the seed of the environments follows.
    """

    settings: Settings
    code: PackedFolder
    make_env: bytes | None
    env_steps: int

    @classmethod
    def pack(cls, settings: Settings, folder: RunFolder, env_steps: int) -> RunTask:
        """Return the data from which the services of the run in `folder` start."""
        code: PackedFolder = {}
        for path in (*folder.path.glob("*.py"), folder.nn_from / settings.base.nn):
            if path.is_file():
                code |= pack_folder(path.parent, [path.name])
        return cls(settings=settings, code=code, make_env=pickle_make_env(folder), env_steps=env_steps)

    def unpack(self) -> RunFolder:
        """Write the files to a folder that is removed with this process. Return it as a run folder."""
        path = make_temporary_folder("samara-actor-")
        unpack_folder(self.code, Manifest(path))
        folder = RunFolder(path)
        folder.make_env = pickle.loads(self.make_env) if self.make_env else None
        return folder


def pickle_make_env(folder: RunFolder) -> bytes | None:
    """Return the function of a program that opens the environment of a run, pickled; None without one."""
    if folder.make_env is None:
        return None
    import cloudpickle  # which Gymnasium needs

    return cloudpickle.dumps(folder.make_env)


Reply = TypeVar("Reply")


class Service:
    """A service of a run. Its methods return a Failure instead of an exception.

    Args:
        task: the data from which it starts.
        index: its number.
        replacements: the number of processes with this number that ended before it.
    """

    def __init__(self, task: RunTask, index: int, replacements: int):
        self.task, self.index, self.replacements = task, index, replacements
        self.log: list[LogRecord] = []  # what the package has logged in this process since the last reply

    def reply(self, call: Callable[..., Reply], *arguments: Any) -> Reply | Failure:
        """Return the result of `call` with the logged messages, or the exception that it raised."""
        try:
            result = call(*arguments)
        except BaseException as error:  # of the environment, or of a user's network
            return Failure.describe(error)
        if isinstance(result, ServiceReply):
            result = replace(result, log=tuple(self.log))
            self.log.clear()
        return result


def start_service(service_class: Callable[..., Service], task: RunTask, index: int, replacements: int) -> Service:
    """Configure this process, and return its service."""
    prepare_worker()
    allow_read_only_arrays()
    configure_torch()
    service = service_class(task, index, replacements)
    forward_log(lambda record: service.log.append(record))
    return service


def forward_log(send: Callable[[LogRecord], object]) -> None:
    """Pass what the package logs in this process to `send`."""
    logger = logging.getLogger("algorithm")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(_ForwardingHandler(send))


class _ForwardingHandler(logging.Handler):
    """A handler that passes each message to a function."""

    def __init__(self, send: Callable[[LogRecord], object]):
        super().__init__()
        self.send = send

    def emit(self, record: logging.LogRecord) -> None:
        self.send(LogRecord(record.levelno, record.getMessage()))


def allow_read_only_arrays() -> None:
    """Suppress torch's warning about arrays that cannot be written, as all arrays of received messages are.

    Nothing writes to a weight array or to the arrays of a collected rollout.
    """
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")


def forbid_new_role(name: str, role: Role) -> NoReturn:
    """Raise UserError for a role that appears during a run, for which the main process has no parameters."""
    raise UserError(f"role {name!r} appeared after the start, which only runtime LOCAL supports")


def forbid_new_lanes(name: str, components: AgentComponents, role: Role) -> NoReturn:
    """Raise UserError for lanes that are added during a run, which the main process does not know."""
    raise UserError(
        f"role {name!r} has {role.lanes} agents after {components.role.lanes} at the start, which only runtime "
        "LOCAL supports"
    )


def _make_sendable(error: BaseException) -> BaseException:
    """Return the error that the main process raises: a SystemExit of a user's code must not end it."""
    error = find_user_error(error)
    if isinstance(error, SystemExit):
        return RuntimeError(f"sys.exit({error.code!r}) was called")
    with suppress(Exception):
        pickle.loads(pickle.dumps(error))
        return error
    return RuntimeError(summarize_error(error))
