"""Supervision of services: they are started on a host and watched, and those that end or hang are replaced."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from math import inf
from typing import Any

from algorithm.adapters.adapter import EnvironmentCrashed, EnvironmentStartError
from algorithm.config.loader import Settings
from algorithm.processes.host import Failure, Host, ProcessHost, ServiceLost, ServiceSpec

LOG = logging.getLogger(__name__)
STEP_SECONDS = 1.0  # longest time between two checks of the time limits


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


@dataclass(kw_only=True, eq=False)
class Supervised:
    """A service, whose process may be replaced.

    Attributes:
        replacements: the number of its processes that ended before the present one.
        is_open: whether the process has replied to the call of `open`, the first call of every process.
        since: time of its start, of its last reply, or of the call after it.
        calls: the tickets of its calls without a reply, oldest first, and their time limits in seconds.
        has_result: whether the process has had a result, which its user declares.
        failed_starts: the number of successive processes that ended without a result.
    """

    index: int
    replacements: int = -1
    is_open: bool = False
    handle: Any = None
    since: float = 0.0
    calls: deque[tuple[Hashable, float]] = field(default_factory=deque)
    has_result: bool = False
    failed_starts: int = 0


@dataclass(eq=False)
class Supervisor:
    """A supervisor of services of one kind.

    Attributes:
        spec: their kind, made from the number of the service and the number of its replacements.
        name: returns the name of a service in messages, given its number.
        time_limit: the setting with the time limit of calls, for messages.
        start_timeout: `cluster_config.start_timeout`, if the time to start is limited.
        max_replacements: the number of processes that are replaced before the run ends; None for no limit.
        max_failed_starts: the number of successive processes of a service that end before their first result, with
            the last of which the run ends.
        services: the services, by number.
        opened: what `open` of the services has returned, which is the same for all of them; None before.
        replaced: the number of processes that were replaced.
    """

    host: Host
    spec: ServiceSpec
    _: KW_ONLY
    name: Callable[[int], str]
    time_limit: str = "cluster_config.timeout"
    start_timeout: float = inf
    max_replacements: int | None = None
    max_failed_starts: int = 3
    services: list[Supervised] = field(init=False, default_factory=list)
    opened: Any = field(init=False, default=None)
    replaced: int = field(init=False, default=0)

    @property
    def n_open(self) -> int:
        """Return the number of services that are open."""
        return sum(service.is_open for service in self.services)

    def ensure(self, count: int) -> None:
        """Start services until there are `count`."""
        while len(self.services) < count:
            self.services.append(Supervised(index=len(self.services)))
            self._start(self.services[-1])

    def wait_for_start(self, needed: int = 1) -> None:
        """Wait until all services are open, or until the time to start has passed; the others may follow later.

        Args:
            needed: the number of services that have to be open then.

        Raises:
            EnvironmentStartError: too few are open in time, or one has ended.
            Exception: a service has raised it.
        """
        for service, reply in self.gather(self.start_timeout):
            if isinstance(reply, Failure):
                reply.raise_error()
            raise EnvironmentStartError(
                f"{self.name(service.index)} {reply} before the run started"
                + ('; a program that trains needs `if __name__ == "__main__":`' if self.host.shares_files else "")
            )
        if self.n_open < needed:
            raise EnvironmentStartError(self.describe_missing())

    def describe_missing(self) -> str:
        """Return a line about the services that are not open."""
        count = len(self.services)
        return (
            f"{count - self.n_open} of {count} {self.spec.kind.lower()}s have not started within "
            f"{self.start_timeout:g} s (cluster_config.start_timeout); they may wait for free CPUs or GPUs of the "
            "cluster"
        )

    def call(self, service: Supervised, method: str, *arguments: Any, timeout: float = inf) -> None:
        """Call a method of a service, which is lost if it does not reply within `timeout` seconds."""
        if not service.calls:
            service.since = time.monotonic()
        service.calls.append((self.host.call(service.handle, method, *arguments), timeout))

    def poll(self, timeout: float, services: Sequence[Supervised] | None = None) -> list[tuple[Supervised, Any]]:
        """Wait for a reply, but not longer than `timeout` seconds.

        The messages that a reply contains are logged.

        Args:
            timeout: the time in seconds.
            services: the services; None for all.

        Returns:
            One result, or Failure, of each service that has replied; ServiceLost for each that has ended, or has not
            replied in time. The first reply of a process states that it is open, and is no result, unless its roles are
            other ones than those of the services before it: this is a failure.
        """
        polled, deadline = self.services if services is None else services, time.monotonic() + timeout
        events: list[tuple[Supervised, Any]] = []
        while not events and (by_ticket := {each.calls[0][0]: each for each in polled if each.calls}):
            left = max(deadline - time.monotonic(), 0.0)
            replied = [by_ticket.pop(ticket) for ticket in self.host.wait(list(by_ticket), left)]
            events += [event for each in replied for event in self._receive(each)]
            now = time.monotonic()
            for each in by_ticket.values():
                limit = min(limit for _, limit in each.calls)
                if now - each.since > limit:
                    lost = ServiceLost(f"has not replied for {limit:g} s ({self.time_limit})")
                    events.append((each, self._lose(each, lost)))
            if not replied:
                break
        return events

    def gather(self, timeout: float, services: Sequence[Supervised] | None = None) -> Iterator[tuple[Supervised, Any]]:
        """Yield what `poll` returns until services have replied to all of their calls, for at most `timeout` seconds.

        Args:
            timeout: the time in seconds.
            services: the services; None for all.
        """
        gathered, deadline = self.services if services is None else services, time.monotonic() + timeout
        while any(each.calls for each in gathered) and (left := deadline - time.monotonic()) > 0:
            yield from self.poll(min(left, STEP_SECONDS), gathered)

    def replace(self, service: Supervised, reason: object, consequence: str = "") -> None:
        """Start another process of a service in place of one that was lost.

        Args:
            service: the service.
            reason: what has happened to the process, to follow the name of the service.
            consequence: what follows, which is logged with the reason; empty: the caller reports both.

        Raises:
            EnvironmentCrashed: too many processes have ended.
        """
        self.host.kill(service.handle)
        description = f"{self.name(service.index)} {reason}"
        service.failed_starts = 0 if service.has_result else service.failed_starts + 1
        if service.failed_starts >= self.max_failed_starts:
            others = f", as {self.max_failed_starts - 1} before it" if self.max_failed_starts > 1 else ""
            raise EnvironmentCrashed(f"{description} before its first result{others}")
        if self.max_replacements is not None and self.replaced >= self.max_replacements:
            raise EnvironmentCrashed(
                f"{description} after {self.replaced} others (base_config.max_env_restarts is {self.max_replacements})"
            )
        self.replaced += 1
        if consequence:
            LOG.warning(f"{description}: {consequence}")
        self._start(service)

    def end(self, service: Supervised) -> None:
        """End the process of a service, which is not replaced."""
        self.host.kill(service.handle)
        self.services.remove(service)

    def _start(self, service: Supervised) -> None:
        service.replacements += 1
        service.handle = self.host.start(self.spec, service.index, service.replacements)
        service.is_open = service.has_result = False
        service.calls.clear()
        self.call(service, "open")

    @staticmethod
    def _lose(service: Supervised, lost: ServiceLost) -> ServiceLost:
        lost.calls = len(service.calls)
        service.calls.clear()
        return lost

    def _receive(self, service: Supervised) -> list[tuple[Supervised, Any]]:
        """Return the result of the oldest call of a service, a Failure or ServiceLost; nothing for one that is open."""
        ticket, _ = service.calls[0]
        try:
            reply = self.host.fetch(ticket)
        except ServiceLost as error:
            if error.__cause__:
                LOG.info(f"{self.name(service.index)}: {error.__cause__}")
            return [(service, self._lose(service, error))]
        service.calls.popleft()
        service.since = time.monotonic()
        for level, text in reply.log:
            LOG.log(level, f"{self.name(service.index)}: {text}")
        if service.is_open or isinstance(reply.result, Failure):
            return [(service, reply.result)]
        if self.opened not in (None, reply.result):
            difference = EnvironmentStartError(f"{self.name(service.index)} has other roles than those before it")
            return [(service, Failure.describe(difference))]
        self.opened, service.is_open = reply.result, True
        return []
