"""The rollout actors of a run, as the learner's process sees them: start, requests, collections, replacement."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from algorithm.adapters.adapter import EnvironmentCrashed, EnvironmentStartError
from algorithm.processes.collection import Collection, Failure, Request
from algorithm.processes.host import Host, ServiceLost, ServiceSpec
from algorithm.processes.learner_peers import LearnerPeers
from algorithm.specs import Role

LOG = logging.getLogger(__name__)
MAX_FAILED_STARTS = 3  # successive actors with the same number that end before their first collection


@dataclass(kw_only=True)
class ActorRecord:
    """A record of one actor.

    Attributes:
        index: its number.
        replacements: the number of actors with this number that ended before it.
        handle: its handle.
        opening: the ticket of its roles; None once it is ready.
        waiting_since: time of its start, of its last reply, or of the request after it.
        requests: tickets of the requests that it has not replied to, oldest first, with their numbers.
        collections: collections that have not been learned from, oldest first.
        n_requests: number of requests that were sent to it.
        n_collections: number of its collections.
        env_steps: env steps of its last collection.
        failed_starts: the number of successive actors with this number that ended before their first collection.
    """

    index: int
    replacements: int = 0
    handle: Any
    opening: Hashable | None
    waiting_since: float
    requests: deque[tuple[Hashable, int]] = field(default_factory=deque)
    collections: deque[Collection] = field(default_factory=deque)
    n_requests: int = 0
    n_collections: int = 0
    env_steps: int = 0
    failed_starts: int = 0

    @property
    def is_ready(self) -> bool:
        """Return whether its environments are open."""
        return self.opening is None

    @property
    def ticket(self) -> Hashable | None:
        """Return the ticket that it replies to next; None without a request."""
        return self.opening or (self.requests[0][0] if self.requests else None)


@dataclass(kw_only=True)
class ActorGroup:
    """The rollout actors of a run.

    Args:
        host: the system that runs them.
        spec: the service of an actor, an `ActorService`.
        count: the number of actors.
        in_flight: the maximum number of rollouts of an actor that were requested, or wait to be learned from.
        timeout: seconds after which an actor that does not reply is replaced.
        start_timeout: seconds in which actors start.
        max_lag: the largest lag, in versions, of rollouts that are learned from; None for no limit.
        max_replacements: the number of actors that are replaced before the run ends; None for no limit.
        evaluator_spec: the service of the evaluation actor, an `EvaluationService`; None without one.
        peers: the other learners; None without others. Learner k has the rollouts of the actors k, k + n_learners, ...

    Attributes:
        evaluator: the handle of the evaluation actor; None without one.
        actor_roles: the roles of the environments of one actor, the same in all actors.
        restarts: the number of actors that were replaced.
        lost_env_steps: estimated number of env steps that were requested from actors that ended.
    """

    host: Host
    spec: ServiceSpec
    count: int
    in_flight: int
    timeout: float
    start_timeout: float
    max_lag: int | None
    max_replacements: int | None
    evaluator_spec: ServiceSpec | None = None
    peers: LearnerPeers | None = None
    evaluator: Any = None
    actor_roles: Mapping[str, Role] = field(default_factory=dict)
    actors: list[ActorRecord] = field(default_factory=list)
    restarts: int = 0
    lost_env_steps: int = 0

    def open(self) -> None:
        """Start all actors, and wait until their environments are open.

        After `start_timeout` seconds the run starts with those that are ready; the others join when they are. It does
        not wait for the evaluation actor, which starts with them.

        Raises:
            EnvironmentStartError: no actor is ready in time, or one has ended.
            Exception: an actor has raised it.
        """
        self.actors = [self._start(index) for index in range(self.count)]
        if self.evaluator_spec:
            self.evaluator = self.host.start(self.evaluator_spec, 0)
        deadline = time.monotonic() + self.start_timeout
        while (waiting := [each for each in self.actors if not each.is_ready]) and time.monotonic() < deadline:
            self._receive_ready(waiting, max(0.0, deadline - time.monotonic()), is_start=True)
        if len(waiting) == self.count:
            raise EnvironmentStartError(self.describe_missing())

    def describe_missing(self) -> str:
        """Return a line about the actors that are not ready."""
        return (
            f"{self.count - self.n_ready} of {self.count} actors have not started within {self.start_timeout:g} s "
            "(cluster_config.start_timeout); they may wait for free CPUs or GPUs of the cluster"
        )

    @property
    def roles(self) -> dict[str, Role]:
        """Return the roles with the lanes of all actors of a learner: those of its first one, of its second one, ..."""
        count = self.count // self.n_learners
        return {
            name: replace(role, lanes=role.lanes * count, teams=role.teams * count)
            for name, role in self.actor_roles.items()
        }

    @property
    def n_learners(self) -> int:
        """Return the number of learners."""
        return self.peers.size if self.peers else 1

    @property
    def n_ready(self) -> int:
        """Return the number of actors whose environments are open."""
        return sum(actor.is_ready for actor in self.actors)

    @property
    def n_waiting(self) -> int:
        """Return the number of collections that have not been learned from."""
        return sum(len(actor.collections) for actor in self.actors)

    def request(self, publish: Callable[[], Any], make_request: Callable[[int], Request]) -> None:
        """Send requests to all actors that may get one.

        All but one of the rollouts in flight may be at the actor, so that it continues while one is learned from.

        Args:
            publish: returns the reference to the newest weights; called if there is a request to send.
            make_request: returns the request with the given number.
        """
        for actor in self.actors:
            while (
                actor.is_ready
                and len(actor.requests) + len(actor.collections) < self.in_flight
                and len(actor.requests) < max(1, self.in_flight - 1)
            ):
                if not actor.requests:
                    actor.waiting_since = time.monotonic()
                number = actor.n_requests
                ticket = self.host.call(actor.handle, "collect", publish(), make_request(number))
                actor.requests.append((ticket, number))
                actor.n_requests += 1

    def receive(self, timeout: float) -> list[tuple[ActorRecord, Collection]]:
        """Wait for collections, but not longer than `timeout` seconds, and replace actors that ended or hang.

        Returns:
            The new collections with their actors. They are appended to `ActorRecord.collections`, too.

        Raises:
            EnvironmentCrashed: too many actors have ended.
            Exception: an actor has raised it.
        """
        received = self._receive_ready(self.actors, timeout, is_start=False)
        for actor in self.actors:
            if actor.is_ready and self._is_late(actor):
                self._replace(actor, f"has not replied for {self.timeout:g} s (cluster_config.timeout)")
        if all(not actor.is_ready and self._is_late(actor) for actor in self.actors):
            raise EnvironmentCrashed(self.describe_missing())
        return received

    def find_next(self, joins: bool) -> list[ActorRecord]:
        """Return the actors whose oldest collections are learned from next; none if they have not been received.

        Args:
            joins: whether they are all actors that are ready, once each has a collection; otherwise, for each learner,
                the actor whose collection was made with the oldest weights.
        """
        filled = [actor for actor in self.actors if actor.collections]
        if joins:
            return [] if any(actor.is_ready and not actor.collections for actor in self.actors) else filled
        filled.sort(key=lambda actor: actor.collections[0].version)
        by_learner = {actor.index % self.n_learners: actor for actor in reversed(filled)}
        return list(by_learner.values()) if len(by_learner) == self.n_learners else []

    def state(self) -> None:
        """Return None: a checkpoint has no state of environments in other processes."""

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore nothing: actors start new episodes, whose rollouts continue no earlier ones."""

    def close(self) -> None:
        """End all actors and the other learners."""
        self.actors = []
        self.host.close()
        if self.peers:
            self.peers.close()

    def _start(self, index: int, replacements: int = 0) -> ActorRecord:
        handle = self.host.start(self.spec, index, replacements)
        return ActorRecord(
            index=index,
            replacements=replacements,
            handle=handle,
            opening=self.host.call(handle, "open"),
            waiting_since=time.monotonic(),
        )

    def _receive_ready(
        self, actors: Iterable[ActorRecord], timeout: float, is_start: bool
    ) -> list[tuple[ActorRecord, Collection]]:
        """Wait for one reply of any of `actors`, and handle one reply of each that has replied."""
        by_ticket = {actor.ticket: actor for actor in actors if actor.ticket is not None}
        if not by_ticket:
            return []
        received = []
        for ticket in self.host.wait(list(by_ticket), timeout):
            actor = by_ticket[ticket]
            try:
                reply = self.host.fetch(ticket)
            except ServiceLost as error:
                if is_start:
                    raise EnvironmentStartError(
                        f"actor {actor.index} ended before its environments were open: {error}"
                    ) from error
                LOG.info(f"actor {actor.index}: {error.__cause__}")
                self._replace(actor, f"ended ({error})")
                continue
            actor.waiting_since = time.monotonic()
            if isinstance(reply, Failure):
                reply.raise_error()
            if not actor.is_ready:
                self._set_ready(actor, reply)
            elif isinstance(reply, Collection):
                self._add(actor, reply)
                received.append((actor, reply))
        return received

    def _is_late(self, actor: ActorRecord) -> bool:
        limit = self.timeout if actor.is_ready else self.start_timeout
        return actor.ticket is not None and time.monotonic() - actor.waiting_since > limit

    def _set_ready(self, actor: ActorRecord, roles: Mapping[str, Role]) -> None:
        if self.actor_roles and roles != self.actor_roles:
            raise EnvironmentStartError(f"the environments of actor {actor.index} have other spaces than those before")
        self.actor_roles = roles
        actor.opening = None

    def _add(self, actor: ActorRecord, collection: Collection) -> None:
        _, number = actor.requests.popleft()
        assert collection.number == number, (collection.number, number)  # no collection is received twice
        actor.n_collections += 1
        actor.env_steps = collection.env_steps
        actor.collections.append(collection)
        for record in collection.log:
            LOG.log(record.level, f"actor {actor.index}: {record.text}")

    def _replace(self, actor: ActorRecord, reason: str) -> None:
        """Start another actor in place of one that ended; its collections remain.

        Raises:
            EnvironmentCrashed: too many actors have ended.
        """
        self.host.kill(actor.handle)
        lost = len(actor.requests) * actor.env_steps
        failed_starts = 0 if actor.n_collections else actor.failed_starts + 1
        description = f"actor {actor.index} {reason}"
        if failed_starts >= MAX_FAILED_STARTS:
            raise EnvironmentCrashed(f"{description}, before its first rollout, as {failed_starts - 1} before it")
        if self.max_replacements is not None and self.restarts >= self.max_replacements:
            raise EnvironmentCrashed(
                f"{description} after {self.restarts} others (base_config.max_env_restarts is {self.max_replacements})"
            )
        self.restarts += 1
        self.lost_env_steps += lost
        LOG.warning(f"{description}: about {lost:,} env steps are lost, and another actor replaces it")
        other = self._start(actor.index, actor.replacements + 1)
        other.collections, other.failed_starts, other.env_steps = actor.collections, failed_starts, actor.env_steps
        self.actors[actor.index] = other
