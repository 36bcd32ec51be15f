"""The rollout actors of a run, as the learner's process sees them: start, requests, experience, replacement."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from algorithm.adapters.adapter import EnvironmentCrashed, EnvironmentStartError
from algorithm.processes.collect import Experience, Request
from algorithm.processes.service import Failure
from algorithm.processes.supervisor import Lost, Supervised, Supervisor
from algorithm.specs import Role


@dataclass(kw_only=True, eq=False)
class Collector:
    """A rollout actor, whose process may be replaced.

    Attributes:
        service: its service.
        is_ready: whether its environments are open.
        waiting: its experience that has not been learned from, oldest first.
        env_steps: env steps of its last experience.
    """

    service: Supervised
    is_ready: bool = False
    waiting: deque[Experience] = field(default_factory=deque)
    env_steps: int = 0

    @property
    def index(self) -> int:
        """Return its number."""
        return self.service.index

    @property
    def n_in_flight(self) -> int:
        """Return the number of rollouts that were requested, or wait to be learned from."""
        return len(self.service.calls) + len(self.waiting)


class Collectors:
    """The rollout actors of a run.

    Args:
        supervisor: supervises them; the services are `CollectorService`.
        count: the number of actors.
        in_flight: the maximum number of rollouts of an actor that were requested, or wait to be learned from.
        timeout: seconds after which an actor that does not reply is replaced.
        start_timeout: seconds in which actors start.
        max_lag: the largest lag, in versions, of rollouts that are learned from; None for no limit.
        n_learners: number of learners. Learner k has the rollouts of the actors k, k + n_learners, ...

    Attributes:
        roles: the roles of the environments of one actor, the same in all actors.
        lost_env_steps: estimated number of env steps that were requested from actors that ended.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        *,
        count: int,
        in_flight: int,
        timeout: float,
        start_timeout: float,
        max_lag: int | None,
        n_learners: int = 1,
    ):
        self.supervisor, self.count, self.in_flight = supervisor, count, in_flight
        self.timeout, self.start_timeout = timeout, start_timeout
        self.max_lag, self.n_learners = max_lag, n_learners
        self.roles: Mapping[str, Role] = {}
        self.lost_env_steps = 0
        self.actors: list[Collector] = []

    def start(self) -> None:
        """Start all actors, which then open their environments."""
        self.supervisor.ensure(self.count)
        self.actors = [Collector(service=service) for service in self.supervisor.services]
        for actor in self.actors:
            self.supervisor.call(actor.service, "open")

    def wait_for_start(self) -> None:
        """Wait until the environments of all actors are open, or until the time to start has passed.

        After `start_timeout` seconds the run starts with those that are ready; the others join when they are.

        Raises:
            EnvironmentStartError: no actor is ready in time, or one has ended.
            Exception: an actor has raised it.
        """
        deadline = time.monotonic() + self.start_timeout
        while self.n_ready < self.count and (left := deadline - time.monotonic()) > 0:
            waiting = [actor.service for actor in self.actors if not actor.is_ready]
            for service, reply in self.supervisor.poll(left, waiting):
                if isinstance(reply, Lost):
                    raise EnvironmentStartError(
                        f"actor {service.index} {reply.reason} before its environments were open"
                    )
                self._receive(self.actors[service.index], reply)
        if not self.n_ready:
            raise EnvironmentStartError(self.describe_missing())

    def describe_missing(self) -> str:
        """Return a line about the actors that are not ready."""
        return (
            f"{self.count - self.n_ready} of {self.count} actors have not started within {self.start_timeout:g} s "
            "(cluster_config.start_timeout); they may wait for free CPUs or GPUs of the cluster"
        )

    @property
    def n_ready(self) -> int:
        """Return the number of actors whose environments are open."""
        return sum(actor.is_ready for actor in self.actors)

    @property
    def n_waiting(self) -> int:
        """Return the number of replies that have not been learned from."""
        return sum(len(actor.waiting) for actor in self.actors)

    def request(self, publish: Callable[[], Any], make_request: Callable[[], Request]) -> None:
        """Send requests to all actors that may get one.

        All but one of the rollouts in flight may be at the actor, so that it continues while one is learned from.

        Args:
            publish: returns the reference to the newest weights; called if there is a request to send.
            make_request: returns the request.
        """
        for actor in self.actors:
            calls = actor.service.calls
            while actor.is_ready and actor.n_in_flight < self.in_flight and len(calls) < max(1, self.in_flight - 1):
                self.supervisor.call(actor.service, "collect", publish(), make_request(), timeout=self.timeout)

    def receive(self, timeout: float) -> list[tuple[Collector, Experience]]:
        """Wait for experience, but not longer than `timeout` seconds, and replace actors that ended or hang.

        Returns:
            The new experience with its actors. It is appended to `Collector.waiting`, too.

        Raises:
            EnvironmentCrashed: too many actors have ended, or none is ready in time.
            Exception: an actor has raised it.
        """
        received: list[tuple[Collector, Experience]] = []
        for service, reply in self.supervisor.poll(timeout):
            actor = self.actors[service.index]
            if isinstance(reply, Lost):
                self._replace(actor, reply)
            else:
                received += self._receive(actor, reply)
        now = time.monotonic()
        if not self.n_ready and all(now - each.service.since > self.start_timeout for each in self.actors):
            raise EnvironmentCrashed(self.describe_missing())
        return received

    def find_next(self, joins: bool) -> list[Collector]:
        """Return the actors whose oldest experience is learned from next; none if it has not been received.

        Args:
            joins: whether they are all actors that are ready, once each has some; otherwise, for each learner, the
                actor whose experience was made with the oldest weights.
        """
        filled = [actor for actor in self.actors if actor.waiting]
        if joins:
            return [] if any(actor.is_ready and not actor.waiting for actor in self.actors) else filled
        filled.sort(key=lambda actor: actor.waiting[0].version)
        by_learner = {actor.index % self.n_learners: actor for actor in reversed(filled)}
        return list(by_learner.values()) if len(by_learner) == self.n_learners else []

    def _receive(self, actor: Collector, reply: Any) -> Sequence[tuple[Collector, Experience]]:
        """Receive the roles or the experience of an actor, which is returned."""
        if isinstance(reply, Failure):
            reply.raise_error()
        if isinstance(reply, Experience):
            actor.service.has_result = True
            actor.env_steps = reply.env_steps
            actor.waiting.append(reply)
            return [(actor, reply)]
        if self.roles and reply != self.roles:
            raise EnvironmentStartError(f"the environments of actor {actor.index} have other spaces than those before")
        self.roles, actor.is_ready = reply, True
        return []

    def _replace(self, actor: Collector, reply: Lost) -> None:
        """Start another process in place of one that was lost; the experience that it has sent remains.

        Raises:
            EnvironmentCrashed: too many actors have ended.
        """
        lost = reply.lost_calls * actor.env_steps if actor.is_ready else 0
        consequence = f"about {lost:,} env steps are lost, and another actor replaces it"
        self.supervisor.replace(actor.service, reply.reason, consequence)
        self.lost_env_steps += lost
        actor.is_ready = False
        self.supervisor.call(actor.service, "open")
