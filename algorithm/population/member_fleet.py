"""The processes that train the members of a population, on this machine or on others."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Any

from algorithm.adapters.adapter import EnvironmentCrashed
from algorithm.checkpointing.checkpoint import CheckpointError
from algorithm.config.loader import Settings
from algorithm.errors import UserError, summarize_error
from algorithm.parts.run_folder import RunFolder
from algorithm.population.folder import LineageRow
from algorithm.population.member import (
    CODE_SUFFIX,
    MemberFailed,
    MemberReply,
    Members,
    MemberService,
    RemoteMemberService,
    read_member,
    write_member,
)
from algorithm.processes.host import Failure, ServiceSpec, open_host
from algorithm.processes.supervisor import Lost, Supervised, Supervisor

WAIT_SECONDS = 1.0  # longest time between two checks of the time limits
STOP_SECONDS = 120.0  # time limit for services that stop their members, and send the checkpoints
Ended = tuple[LineageRow, LineageRow | MemberFailed]  # a task with its result


@dataclass(kw_only=True)
class _Work:
    """A task of a service.

    Attributes:
        task: the task.
        deadline: the time at which it has to end.
        lock: holds the lock of the run folder, if the service is on another machine.
        is_stopping: whether the service was requested to stop.
    """

    task: LineageRow
    deadline: float
    lock: ExitStack = field(default_factory=ExitStack)
    is_stopping: bool = False


class MemberFleet:
    """The services of a host that train the members of a population.

    Services on other machines have no access to the run folders: they receive the files that a member needs, and send
    its new checkpoints and all other changes.

    Args:
        members: the members.
        settings: the settings of the population.
        log: receives lines for the user.

    Raises:
        UserError: Ray is not installed, or there is no cluster.
    """

    def __init__(self, members: Members, settings: Settings, log: Callable[[str], None]):
        config, cluster = settings.population, settings.cluster
        self.host = open_host(settings, (config.processes or 1) * config.cpus_per_member)
        is_local = self.host.shares_files
        spec = ServiceSpec(
            kind="Member",
            make=partial(MemberService if is_local else RemoteMemberService, members),
            cpus=config.cpus_per_member,
            gpus=config.gpus_per_member,
        )
        self.supervisor = Supervisor(self.host, spec, name="process {} of the members".format)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.count = config.processes or (cores if is_local else len(members.folders))
        self.keep, self.log = settings.base.keep_checkpoints, log
        self.timeout = config.timeout or inf
        self.reply_timeout = inf if is_local else cluster.timeout
        self.start_timeout = inf if is_local else cluster.start_timeout
        self._folders = [RunFolder(path) for path in members.folders]
        self._work: dict[Supervised, _Work] = {}

    def train(self, tasks: Sequence[LineageRow]) -> Iterator[Ended]:
        """Yield each task with its result, as soon as it has ended. Tasks that are left when it is closed are stopped.

        Raises:
            MemberFailed: services end before they can train a member.
            UserError: a setting does not fit the members, or no service starts in time.
        """
        waiting, deadline = list(tasks), time.monotonic() + self.start_timeout
        self.supervisor.ensure(min(self.count, len(tasks)))
        try:
            while waiting or self._work:
                self._assign(waiting)
                results = [each for event in self.supervisor.poll(WAIT_SECONDS) for each in self._receive(*event)]
                results += [each for event in self._find_late() for each in self._receive(*event)]
                yield from results
                if not self.supervisor.n_open and time.monotonic() > deadline:
                    raise UserError(
                        f"no member has started within {self.start_timeout:g} s (cluster_config.start_timeout); there "
                        "may be no free CPUs or GPUs in the cluster (population_config.cpus_per_member)"
                    )
        finally:
            self._stop_members()  # the caller needs no further results

    def close(self) -> None:
        """End all services; members that train save a checkpoint first."""
        try:
            self._stop_members()
        finally:
            self.host.close()

    def _assign(self, waiting: list[LineageRow]) -> None:
        """Give the first tasks to services that have none."""
        for service in self.supervisor.services:
            if waiting and service.is_open and service not in self._work:
                task, files = waiting.pop(0), None
                work = self._work[service] = _Work(task=task, deadline=time.monotonic() + self.timeout)
                if not self.host.shares_files:
                    folder = self._folders[task.member - 1]
                    work.lock.enter_context(folder.lock)
                    files = read_member(folder, self.keep, self.log)
                self.supervisor.call(service, "begin", task, files, timeout=self.reply_timeout)

    def _find_late(self) -> list[tuple[Supervised, Lost]]:
        """Return the services whose tasks have exceeded the time limit."""
        reason = f"has not ended its interval within {self.timeout:g} s (population_config.timeout)"
        now = time.monotonic()
        return [(service, Lost(reason)) for service, work in self._work.items() if work.deadline <= now]

    def _receive(self, service: Supervised, reply: Any) -> Iterator[Ended]:
        """Handle a reply of a service. Yield its task with the result, if it has ended."""
        if isinstance(reply, Lost):
            yield from self._replace(service, reply.reason, f"its process {reply.reason}")
        elif isinstance(reply, Failure):
            if service not in self._work or not isinstance(reply.error, OSError | ValueError):
                reply.raise_error()
            yield self._release(service), MemberFailed(summarize_error(reply.error))  # of files on its machine
        elif service in self._work:  # it has not exceeded its time limit meanwhile
            try:
                self._write(service, reply)
            except (CheckpointError, ValueError) as error:
                yield from self._replace(service, "has sent files that cannot be used", summarize_error(error))
                return
            if reply.result is None:
                self.supervisor.call(service, "poll", timeout=self.reply_timeout)
                return
            task = self._release(service)
            if isinstance(reply.result, UserError):
                raise reply.result
            yield task, reply.result

    def _write(self, service: Supervised, reply: MemberReply) -> None:
        """Write the files of a reply into the run folder of the member.

        Raises:
            CheckpointError: a file was damaged on its way.
            OSError: a file cannot be written.
            ValueError: a file is code, or outside of the run folder.
        """
        if reply.files is not None:
            if any(name.endswith(CODE_SUFFIX) for name in reply.files.others):
                raise ValueError("a service has sent code")
            write_member(self._folders[self._work[service].task.member - 1], reply.files, self.keep)

    def _release(self, service: Supervised) -> LineageRow:
        """Let a service have no task. Return the one that it had."""
        work = self._work.pop(service)
        work.lock.close()
        return work.task

    def _replace(self, service: Supervised, reason: str, message: str) -> Iterator[Ended]:
        """Replace the process of a service. Yield its task, which has failed with a message, if it had one."""
        task = self._release(service) if service in self._work else None
        service.has_result = service.is_open
        try:
            self.supervisor.replace(service, reason)
        except EnvironmentCrashed as error:
            raise MemberFailed(f"members cannot be trained: {error}") from error
        if task:
            yield task, MemberFailed(message)

    def _stop_members(self) -> None:
        """Stop the members that train, and receive their last checkpoints."""
        for service, work in self._work.items():
            if not work.is_stopping:
                work.is_stopping = True  # a second signal would interrupt its tick
                self.host.interrupt(service.handle)
                self.supervisor.call(service, "stop", timeout=STOP_SECONDS)
        deadline = time.monotonic() + STOP_SECONDS
        while self._work and time.monotonic() < deadline:
            for service, reply in self.supervisor.poll(WAIT_SECONDS, list(self._work)):
                if isinstance(reply, Lost):
                    self.supervisor.end(service)
                elif isinstance(reply, MemberReply):
                    with suppress(CheckpointError, ValueError):
                        self._write(service, reply)
                if not service.calls:  # it replies in the order of its calls
                    self._release(service)
        for service in list(self._work):  # it hangs
            self.supervisor.end(service)
            self._release(service)
