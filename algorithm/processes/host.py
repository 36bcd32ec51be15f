"""The contract of a system that runs services: objects in processes of their own, whose methods this process calls.

`ServiceProcess` is the other side of it: what every host executes in the process of a service.
"""

from __future__ import annotations

import logging
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from algorithm.errors import format_traceback, summarize_error
from algorithm.parts.user_code import find_user_error


class ServiceLost(Exception):
    """The process of a service, or its machine, has ended. The message is how, as the predicate of a sentence."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ServiceSpec:
    """The data from which services of a kind start.

    Attributes:
        kind: name of the kind, for lists of processes.
        make: makes the service in its process, given its numbers; it is pickled.
        cpus: CPUs that are reserved for each service, if the host reserves any.
        gpus: GPUs that are reserved for each service, if the host reserves any.
        inherited: the first arguments of `make`, of kinds that only a process of this machine can inherit when it is
            spawned; without any, other hosts can run the services, too.
    """

    kind: str
    make: Callable[..., Any]
    cpus: float = 0
    gpus: float = 0
    inherited: tuple[Any, ...] = ()


class RemoteTraceback(Exception):
    """The traceback of an exception in another process, as text."""


@dataclass(frozen=True)
class Failure:
    """An exception that a service has raised, as one that can be sent, with its traceback as text."""

    error: BaseException
    trace: str

    @classmethod
    def describe(cls, error: BaseException) -> Failure:
        """Return the failure of an exception; a SystemExit of a user's code must not end the main process."""
        trace, error = format_traceback(error), find_user_error(error)
        if isinstance(error, SystemExit):
            return cls(RuntimeError(f"sys.exit({error.code!r}) was called"), trace)
        with suppress(Exception):
            pickle.loads(pickle.dumps(error))
            return cls(error, trace)
        return cls(RuntimeError(summarize_error(error)), trace)

    def raise_error(self) -> NoReturn:
        """Raise the exception, caused by one that shows the traceback in the other process."""
        raise self.error from RemoteTraceback(f"\n{self.trace}")


@dataclass(frozen=True)
class Reply:
    """The reply to a call of a service.

    Attributes:
        result: what the method has returned; a Failure if it, or the function that makes the service, has raised an
            exception.
        log: the messages that were logged in the process since the last reply, if it forwards them, with their levels.
    """

    result: Any
    log: tuple[tuple[int, str], ...]


class ServiceProcess:
    """The process of a service: its host makes the service, and then calls it.

    Args:
        make: makes the service.
        arguments: the arguments of `make`.
    """

    def __init__(self, make: Callable[..., Any], *arguments: Any):
        self._service, self._failure = None, None
        try:
            self._service = make(*arguments)
        except BaseException as error:  # of a user's code, too
            self._failure = Failure.describe(error)

    def call(self, method: str, *arguments: Any) -> Reply:
        """Call a method of the service."""
        try:
            result = self._failure or getattr(self._service, method)(*arguments)
        except BaseException as error:
            result = Failure.describe(error)
        log = tuple(_forwarded)
        _forwarded.clear()
        return Reply(result, log)


_forwarded: list[tuple[int, str]] = []  # what was logged in this process since the last reply


class _ForwardingHandler(logging.Handler):
    """A handler that keeps each message for the next reply."""

    def emit(self, record: logging.LogRecord) -> None:
        _forwarded.append((record.levelno, record.getMessage()))


def forward_log() -> None:
    """Add what the package logs in this process to the replies of its service."""
    logger = logging.getLogger("algorithm")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(_ForwardingHandler())


class Host(ABC):
    """A system that runs services. Only `wait` waits for them.

    A *ticket* is a reply that has not been received yet. A service executes its calls in the order in which they were
    made, each once: no call is repeated, and no service is started again, by itself.

    Attributes:
        shares_files: whether services read and write the files of this machine.
    """

    shares_files = False

    @abstractmethod
    def start(self, spec: ServiceSpec, *numbers: int) -> Any:
        """Start a service, as soon as there are resources for it. Return a handle of it.

        Args:
            spec: its kind.
            numbers: the arguments of `ServiceSpec.make`.
        """

    @abstractmethod
    def put(self, value: Any) -> Any:
        """Store a value where all services can read it. Return a reference, which can be an argument of calls."""

    @abstractmethod
    def call(self, handle: Any, method: str, *arguments: Any) -> Hashable:
        """Call a method of a service. Return the ticket of its result.

        Args:
            handle: the handle of the service.
            method: the name of the method.
            arguments: its arguments; a reference arrives as the value. Their arrays may be read-only there.
        """

    @abstractmethod
    def wait(self, tickets: Collection[Hashable], timeout: float) -> Collection[Hashable]:
        """Wait until at least one ticket has been replied to, but not longer than `timeout` seconds. Return these."""

    @abstractmethod
    def fetch(self, ticket: Hashable) -> Reply:
        """Return the reply to a ticket that `wait` has returned. Its arrays may be read-only.

        Raises:
            ServiceLost: the service has ended.
        """

    @abstractmethod
    def kill(self, handle: Any) -> None:
        """End a service at once, if it has not ended."""

    def interrupt(self, handle: Any) -> None:
        """Send SIGTERM to a service on this machine, whose call may handle it. The default does nothing."""

    def find_meeting_host(self) -> str | None:
        """Return the address of this machine for services on other machines; None if all are on this one."""
        return None

    def close(self) -> None:
        """End all services. The default does nothing."""
