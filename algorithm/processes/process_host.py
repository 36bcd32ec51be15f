"""Services in processes of this machine, and the choice between these and Ray."""

from __future__ import annotations

import itertools
import os
import pickle
import queue
import threading
from collections.abc import Collection, Hashable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from typing import Any

from algorithm.adapters.process_setup import PROCESSES, end_with_parent, prepare_worker
from algorithm.config.loader import Settings
from algorithm.errors import describe_exit
from algorithm.processes.host import Host, Reply, ServiceLost, ServiceProcess, ServiceSpec

JOIN_SECONDS = 5.0  # longest time in which a process ends whose connection is closed


class ProcessHost(Host):
    """A host whose services are processes of this machine, which end with this process.

    A value of `put` is pickled once, and sent with each call that refers to it. Messages are sent and received by
    threads, so that no call waits for a process that is busy, or hangs.

    Args:
        context: starts the processes; None: as all processes of this package.
    """

    shares_files = True

    def __init__(self, context: BaseContext | None = None):
        self._context = context or PROCESSES
        self._numbers = itertools.count()
        self._replied = threading.Condition()
        self._handles: list[_Handle] = []

    def start(self, spec: ServiceSpec, *numbers: int) -> _Handle:
        handle = _Handle(self._context, spec, numbers, self._replied)
        self._handles.append(handle)
        return handle

    def put(self, value: Any) -> _Reference:
        return _Reference(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))

    def call(self, handle: _Handle, method: str, *arguments: Any) -> Hashable:
        number = next(self._numbers)
        handle.send((number, method, arguments))
        return handle, number

    def wait(self, tickets: Collection[Hashable], timeout: float) -> Collection[Hashable]:
        with self._replied:
            self._replied.wait_for(lambda: any(map(_is_ready, tickets)), timeout)
            return [ticket for ticket in tickets if _is_ready(ticket)]

    def fetch(self, ticket: Any) -> Reply:
        handle, number = ticket
        if number not in handle.replies:
            raise ServiceLost(handle.describe_end())
        return handle.replies.pop(number)

    def kill(self, handle: _Handle) -> None:
        if handle in self._handles:
            self._handles.remove(handle)
            handle.kill()

    def interrupt(self, handle: _Handle) -> None:
        handle.interrupt()

    def close(self) -> None:
        for handle in list(self._handles):
            self.kill(handle)


def open_host(settings: Settings, local_cpus: float) -> Host:
    """Return the system that runs the other processes of a run, or the members of a population.

    Args:
        settings: the settings of the run or the population.
        local_cpus: CPUs that a Ray cluster of this machine needs at least.

    Raises:
        UserError: Ray is not installed, or there is no cluster.
        EnvironmentStartError: a local cluster does not start in time.
    """
    cluster = settings.cluster
    if settings.base.is_on_cluster and cluster.host == "ray":
        from algorithm.processes.ray_host import RayHost

        return RayHost(address=cluster.address, local_cpus=local_cpus, uses_tokens=cluster.token_auth)
    return ProcessHost()


@dataclass(frozen=True)
class _Reference:
    """A value of `put`, pickled."""

    content: bytes


class _Handle:
    """A process of a service, with the replies that were received and not fetched, by the number of their call."""

    def __init__(self, context: Any, spec: ServiceSpec, numbers: tuple[int, ...], replied: threading.Condition):
        self._connection, theirs = context.Pipe()
        name = "-".join(map(str, (spec.kind, *numbers)))
        self._process = context.Process(target=_serve, args=(theirs, spec.inherited), name=name)
        self._process.start()
        theirs.close()
        self.replies: dict[int, Reply] = {}
        self.is_lost = False
        self._replied = replied
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        for target in (self._send_messages, self._receive_replies):
            threading.Thread(target=target, daemon=True).start()
        self.send((spec.make, numbers))

    def send(self, message: Any) -> None:
        """Send a message, later. It is pickled now, since the caller may change its arrays."""
        self._outbox.put(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def interrupt(self) -> None:
        """Send SIGTERM to the process."""
        self._process.terminate()

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.join()
        self._outbox.put(None)

    def describe_end(self) -> str:
        """Return how the process has ended."""
        self._process.join(JOIN_SECONDS)
        code = self._process.exitcode
        return "its connection was closed" if code is None else describe_exit(code)

    def _send_messages(self) -> None:
        with suppress(OSError):  # the process has ended, which `_receive_replies` notices
            while (message := self._outbox.get()) is not None:
                self._connection.send_bytes(message)

    def _receive_replies(self) -> None:
        try:
            # Programs that the process has started may keep its end of the connection open.
            while self._connection in wait([self._connection, self._process.sentinel]):
                number, reply = self._connection.recv()
                with self._replied:
                    self.replies[number] = reply
                    self._replied.notify_all()
        except (EOFError, OSError):
            pass
        with self._replied:
            self.is_lost = True
            self._replied.notify_all()


def _is_ready(ticket: Any) -> bool:
    handle, number = ticket
    return handle.is_lost or number in handle.replies


def _serve(connection: Connection, inherited: tuple[Any, ...]) -> None:
    """Make the service of this process, and execute calls until the main process ends it, or has ended."""
    prepare_worker()
    if hasattr(os, "setsid"):  # signals of the terminal reach the main process only
        os.setsid()
    end_with_parent()
    try:
        make, numbers = pickle.loads(connection.recv_bytes())
        service = ServiceProcess(make, *inherited, *numbers)
        while True:
            number, method, arguments = pickle.loads(connection.recv_bytes())
            values = [pickle.loads(each.content) if isinstance(each, _Reference) else each for each in arguments]
            connection.send((number, service.call(method, *values)))
    except (EOFError, OSError):  # the main process has ended
        pass
    finally:
        os._exit(0)
