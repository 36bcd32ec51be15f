"""The contract of a system that runs services: objects in processes of their own, whose methods this process calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from typing import Any


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
    """

    kind: str
    make: Callable[..., Any]
    cpus: float = 0
    gpus: float = 0


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
    def fetch(self, ticket: Hashable) -> Any:
        """Return the reply to a ticket that `wait` has returned. Its arrays may be read-only.

        Raises:
            RuntimeError: the service could not be made, or its method has raised an exception.
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
