"""The contract between the learner of a cluster and the system that runs its actors on machines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection as Many
from collections.abc import Hashable
from typing import Any

from algorithm.processes.collection import EvaluationRequest, Request, Weights


class ActorLost(Exception):
    """An actor, its process or its machine has ended."""


class ActorHost(ABC):
    """A system that runs actors in other processes. No method but `wait` waits for an actor.

    A *ticket* is a reply that has not been received yet.
    """

    @abstractmethod
    def start(self, index: int, replacements: int) -> Any:
        """Start an actor, as soon as there are resources for it.

        Args:
            index: its number.
            replacements: the number of actors with this number that ended before it.

        Returns:
            A handle of the actor.
        """

    @abstractmethod
    def open(self, handle: Any) -> Hashable:
        """Let an actor open its environments and build its agents. Return the ticket of its roles, or of a Failure."""

    @abstractmethod
    def publish(self, weights: Weights) -> Any:
        """Store weights where all actors can read them. Return a reference to them."""

    @abstractmethod
    def request(self, handle: Any, weights: Any, request: Request) -> Hashable:
        """Send a request with a reference to weights. Return the ticket of a Collection, or of a Failure.

        An actor executes its requests in the order in which they were sent, each once.
        """

    @abstractmethod
    def start_evaluator(self, replacements: int) -> Any:
        """Start an actor for evaluations, for which no resources are reserved. Return a handle of it.

        Args:
            replacements: the number of evaluation actors that ended before it.
        """

    @abstractmethod
    def evaluate(self, handle: Any, weights: Any, request: EvaluationRequest) -> Hashable:
        """Send a request with a reference to weights. Return the ticket of an EvaluationReply, or of a Failure."""

    @abstractmethod
    def wait(self, tickets: Many[Hashable], timeout: float) -> Many[Hashable]:
        """Wait until at least one ticket has been replied to, but not longer than `timeout` seconds. Return these."""

    @abstractmethod
    def fetch(self, ticket: Hashable) -> Any:
        """Return the reply to a ticket that `wait` has returned. Its arrays may be read-only.

        Raises:
            ActorLost: the actor has ended.
        """

    @abstractmethod
    def kill(self, handle: Any) -> None:
        """End an actor at once, if it has not ended."""

    def close(self) -> None:
        """End all actors. The default does nothing."""
