"""Systems that run services, objects in processes of their own: their contract, and processes of this machine.

`ServiceProcess` is the other side of it: what every host executes in the process of a service.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from contextlib import suppress
from dataclasses import dataclass
from logging.handlers import BufferingHandler
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

from algorithm.adapters.process_setup import PROCESSES, end_with_parent, prepare_worker, start_garbage_collection
from algorithm.errors import describe_exit, format_traceback, summarize_error
from algorithm.parts.user_code import find_user_error

JOIN_SECONDS = 5.0  # longest time in which a process ends whose connection is closed


class ServiceLost(Exception):
    """The process of a service, or its machine, has ended. The message is how, as the predicate of a sentence.

    Attributes:
        calls: the number of calls that it has not replied to, if a supervisor has counted them.
    """

    calls = 0


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
        log = tuple((record.levelno, record.getMessage()) for record in _forwarded.buffer)
        _forwarded.flush()
        return Reply(result, log)


_forwarded = BufferingHandler(sys.maxsize)  # keeps what was logged in this process since the last reply


def forward_log() -> None:
    """Add what the package logs in this process to the replies of its service."""
    logger = logging.getLogger("algorithm")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(_forwarded)


class Host(ABC):
    """A system that runs services. Only `wait` waits for them.

    A *ticket* is a reply that has not been received yet. A service executes its calls in the order in which they were
    made, each once: no call is repeated, and no service is started again, by itself.

    Attributes:
        shares_files: whether services read and write the files of this machine.
        meeting_host: the address of this machine for services on other machines; None if all are on this one.
    """

    shares_files = False
    meeting_host: str | None = None

    @abstractmethod
    def start(self, spec: ServiceSpec, *numbers: int) -> Any:
        """Start a service, as soon as there are resources for it. Return a handle of it.

        Args:
            spec: its kind.
            numbers: the arguments of `ServiceSpec.make`.
        """

    def put(self, value: Any) -> Any:
        """Store a value, which does not change any more, where all services can read it.

        Returns:
            A reference, which can be an argument of calls; by default the value, which is sent with each of them.
        """
        return value

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

    @abstractmethod
    def close(self) -> None:
        """End all services."""


class ProcessHost(Host):
    """A host whose services are processes of this machine, which end with this process.

    Messages are sent and received by threads, so that no call waits for a process that is busy, or hangs. A ticket is
    the future of a reply.
    """

    shares_files = True

    def __init__(self) -> None:
        self._handles: list[_Handle] = []

    def start(self, spec: ServiceSpec, *numbers: int) -> _Handle:
        self._handles.append(_Handle(spec, numbers))
        return self._handles[-1]

    def call(self, handle: _Handle, method: str, *arguments: Any) -> Hashable:
        handle.send((method, arguments))
        return handle.receiver.submit(handle.receive)

    def wait(self, tickets: Collection[Any], timeout: float) -> Collection[Hashable]:
        wait_for_futures(tickets, timeout, FIRST_COMPLETED)
        return [ticket for ticket in tickets if ticket.done()]

    def fetch(self, ticket: Any) -> Reply:
        return ticket.result()

    def kill(self, handle: _Handle) -> None:
        if handle in self._handles:
            self._handles.remove(handle)
            handle.process.kill()
            handle.process.join()

    def interrupt(self, handle: _Handle) -> None:
        handle.process.terminate()

    def close(self) -> None:
        for handle in list(self._handles):
            self.kill(handle)


class _Handle:
    """A process of a service, and the threads that send its calls and receive the replies, both in their order."""

    def __init__(self, spec: ServiceSpec, numbers: tuple[int, ...]):
        self._connection, theirs = PROCESSES.Pipe()
        name = "-".join(map(str, (spec.kind, *numbers)))
        self.process = PROCESSES.Process(target=_serve, args=(theirs, spec.inherited), name=name)
        self.process.start()
        theirs.close()
        self._sender, self.receiver = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self.send((spec.make, numbers))

    def send(self, message: Any) -> None:
        """Send a message, later; it is pickled now, since the caller may change its arrays.

        If the process has ended, `receive` notices it.
        """
        self._sender.submit(self._connection.send_bytes, pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def receive(self) -> Reply:
        """Wait for the next reply. Raises ServiceLost."""
        with suppress(EOFError, OSError):
            # Programs that the process has started may keep its end of the connection open.
            if self._connection in wait([self._connection, self.process.sentinel]):
                return self._connection.recv()
        self.process.join(JOIN_SECONDS)
        code = self.process.exitcode
        raise ServiceLost("its connection was closed" if code is None else describe_exit(code))


def _serve(connection: Connection, inherited: tuple[Any, ...]) -> None:
    """Make the service of this process, and execute calls until the main process ends it, or has ended."""
    prepare_worker()
    if hasattr(os, "setsid"):  # signals of the terminal reach the main process only
        os.setsid()
    end_with_parent()
    code = 1
    try:
        make, numbers = connection.recv()
        service = ServiceProcess(make, *inherited, *numbers)
        start_garbage_collection()
        while True:
            method, arguments = connection.recv()
            connection.send(service.call(method, *arguments))
    except (EOFError, OSError):  # the main process has ended
        code = 0
    except Exception:  # a message cannot be read or written, or the service cannot be made
        traceback.print_exc()
    finally:
        os._exit(code)
