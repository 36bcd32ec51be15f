"""Actors on a cluster that train the members of a population."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from algorithm.checkpointing.manifest import CheckpointError
from algorithm.config.loader import Settings
from algorithm.errors import UserError, summarize_error
from algorithm.parts.run_folder import RunFolder
from algorithm.population.member import Members
from algorithm.population.member_files import read_member, write_member
from algorithm.population.member_processes import STOP_SECONDS
from algorithm.population.member_server import MemberReply, make_member_server
from algorithm.population.rounds import MemberFailed, MemberReport, MemberTask
from algorithm.processes.host import Host, ServiceLost, ServiceSpec

MAX_FAILED_STARTS = 3  # successive actors that end before they can train a member
WAIT_SECONDS = 1.0  # longest time between two checks of the time limits


@dataclass(kw_only=True, eq=False)
class _MemberActor:
    """An actor, with the ticket of the reply that it owes, if any, and the task that it works on, if any.

    Attributes:
        since: time at which the reply was requested.
        locks: holds the lock of the run folder of its member.
    """

    index: int
    replacements: int
    handle: Any
    ticket: Hashable | None
    since: float
    is_open: bool = False
    task: MemberTask | None = None
    locks: ExitStack = field(default_factory=ExitStack)


class MemberActors:
    """A runner of members in actors of a cluster.

    The run folders stay on the machine of this process, which sends an actor the files that its member needs, and
    receives its new checkpoints and all other changes, so that the machines need no shared folders.

    Args:
        members: the members.
        host: the system that runs the actors.
        spec: the service of an actor.
        count: the number of actors.
        keep: the number of checkpoints that a member keeps.
        timeout: seconds after which an actor that does not reply is replaced.
        start_timeout: seconds in which the first actor starts.
        log: receives lines for the user.
    """

    def __init__(
        self,
        *,
        members: Members,
        host: Host,
        spec: ServiceSpec,
        count: int,
        keep: int,
        timeout: float,
        start_timeout: float,
        log: Callable[[str], None],
    ):
        self._folders = [RunFolder(path) for path in members.folders]
        self.host, self.spec, self.count, self.keep = host, spec, count, keep
        self.timeout, self.start_timeout, self.log = timeout, start_timeout, log
        self._actors: list[_MemberActor] = []
        self._failed_starts = 0

    def train(self, tasks: Sequence[MemberTask]) -> Iterator[tuple[MemberTask, MemberReport | MemberFailed]]:
        """Yield each task with its result, as `MemberRunner` requires."""
        waiting, deadline = list(tasks), time.monotonic() + self.start_timeout
        while len(self._actors) < min(self.count, len(tasks)):
            self._actors.append(self._start(len(self._actors)))
        try:
            while waiting or self._list_busy():
                self._assign(waiting)
                for actor in self._wait():
                    task = actor.task
                    if result := self._receive(actor):
                        assert task is not None
                        yield task, result
                if not any(actor.is_open for actor in self._actors) and time.monotonic() > deadline:
                    raise UserError(
                        f"no member has started within {self.start_timeout:g} s (cluster_config.start_timeout); there "
                        "may be no free CPUs or GPUs in the cluster (population_config.cpus_per_member)"
                    )
        finally:
            self._stop_members()  # the caller needs no further results

    def close(self) -> None:
        """End all actors; members that train save a checkpoint first."""
        try:
            self._stop_members()
        finally:
            self._actors.clear()
            self.host.close()

    def _list_busy(self) -> list[_MemberActor]:
        return [actor for actor in self._actors if actor.task]

    def _start(self, index: int, replacements: int = 0) -> _MemberActor:
        handle = self.host.start(self.spec, index, replacements)
        return _MemberActor(
            index=index,
            replacements=replacements,
            handle=handle,
            ticket=self.host.call(handle, "open"),
            since=time.monotonic(),
        )

    def _assign(self, waiting: list[MemberTask]) -> None:
        """Give the first tasks to actors that have none."""
        for actor in self._actors:
            if waiting and actor.is_open and not actor.task:
                actor.task = task = waiting.pop(0)
                folder = self._folders[task.member - 1]
                actor.locks.enter_context(folder.lock)
                self._call(actor, "begin", task, read_member(folder, self.keep, self.log))

    def _call(self, actor: _MemberActor, method: str, *arguments: Any) -> None:
        actor.ticket, actor.since = self.host.call(actor.handle, method, *arguments), time.monotonic()

    def _wait(self) -> list[_MemberActor]:
        """Wait for replies. Return the actors that have replied, and those that have not replied in time."""
        by_ticket = {actor.ticket: actor for actor in self._actors if actor.ticket is not None}
        replied = [by_ticket[ticket] for ticket in self.host.wait(list(by_ticket), WAIT_SECONDS)]
        limit = time.monotonic() - self.timeout
        silent = [actor for actor in self._list_busy() if actor.since < limit and actor not in replied]
        for actor in silent:
            actor.ticket = None
        return replied + silent

    def _receive(self, actor: _MemberActor) -> MemberReport | MemberFailed | None:
        """Handle the reply of an actor. Return the result of its task, if it has ended.

        Raises:
            MemberFailed: actors end before they can train a member.
            UserError: a setting does not fit the member.
        """
        task, ticket, actor.ticket = actor.task, actor.ticket, None
        try:
            if ticket is None:
                raise ServiceLost(f"it has not replied for {self.timeout:g} s (cluster_config.timeout)")
            reply = self.host.fetch(ticket)
        except ServiceLost as error:
            self._replace(actor, str(error))
            return MemberFailed(f"its actor has ended ({error})") if task else None
        if not actor.is_open:
            actor.is_open, self._failed_starts = True, 0
            return None
        try:
            self._write(actor, reply)
        except (CheckpointError, ValueError) as error:
            self._replace(actor, str(error))
            return MemberFailed(summarize_error(error))
        if reply.result is None:
            self._call(actor, "poll")
            return None
        actor.task = None
        actor.locks.close()
        if isinstance(reply.result, UserError):
            raise reply.result
        return reply.result

    def _write(self, actor: _MemberActor, reply: MemberReply) -> None:
        """Write the files of a reply into the run folder of the member.

        Raises:
            CheckpointError: a checkpoint was damaged on its way.
            OSError: a file cannot be written.
            ValueError: a file is code, or outside of the run folder.
        """
        if reply.files is None or actor.task is None:
            return
        if reply.files.code or any(name.endswith(".py") for name in reply.files.records):
            raise ValueError("an actor has sent code")
        write_member(self._folders[actor.task.member - 1], reply.files, self.keep)

    def _replace(self, actor: _MemberActor, reason: str) -> None:
        """End an actor, and start another one in its place."""
        if not actor.is_open:
            self._failed_starts += 1
        self.host.kill(actor.handle)
        actor.locks.close()
        if self._failed_starts == MAX_FAILED_STARTS:
            raise MemberFailed(f"members cannot be trained on the cluster: {reason}")
        self._actors[self._actors.index(actor)] = self._start(actor.index, actor.replacements + 1)

    def _stop_members(self) -> None:
        """Stop the members that train, and receive their last checkpoints."""
        pending = {self.host.call(actor.handle, "stop"): actor for actor in self._list_busy()}
        deadline = time.monotonic() + 2 * STOP_SECONDS  # a server waits for its member, and then sends the checkpoint
        while pending and time.monotonic() < deadline:
            for stopped in self.host.wait(list(pending), WAIT_SECONDS):
                actor = pending.pop(stopped)
                with suppress(ServiceLost, CheckpointError, ValueError):
                    for ticket in (actor.ticket, stopped):  # an actor replies in the order of its calls
                        if ticket is not None:
                            self._write(actor, self.host.fetch(ticket))
                actor.ticket = actor.task = None
                actor.locks.close()
        for actor in pending.values():  # it hangs
            self.host.kill(actor.handle)
            self._actors.remove(actor)
            actor.locks.close()


def open_member_actors(members: Members, settings: Settings, log: Callable[[str], None]) -> MemberActors:
    """Connect to the cluster of a population. Return the runner of its members.

    Raises:
        UserError: Ray is not installed, or there is no cluster.
    """
    from algorithm.processes.ray_host import RayHost

    cluster, config = settings.cluster, settings.population
    local_cpus = (config.processes or 1) * config.cpus_per_member
    host = RayHost(address=cluster.address, local_cpus=local_cpus, uses_tokens=cluster.token_auth)
    make = partial(make_member_server, members, config.timeout)
    return MemberActors(
        members=members,
        host=host,
        spec=ServiceSpec(kind="Member", make=make, cpus=config.cpus_per_member, gpus=config.gpus_per_member),
        count=config.processes or len(members.folders),
        keep=settings.base.keep_checkpoints,
        timeout=cluster.timeout,
        start_timeout=cluster.start_timeout,
        log=log,
    )
