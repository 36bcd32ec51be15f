"""The processes that train the members of a population: services on this machine or on others, and their fleet."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from algorithm.adapters.adapter import EnvironmentCrashed
from algorithm.adapters.process_setup import prepare_worker
from algorithm.atomic_io import UNFINISHED_SUFFIX, resolve_inside
from algorithm.checkpointing.checkpoint import (
    MANIFEST,
    CheckpointError,
    Manifest,
    PackedFolder,
    pack_folder,
    unpack_folder,
)
from algorithm.config.loader import Settings
from algorithm.errors import UserError, is_stop, summarize_error
from algorithm.parts.lock import LOCK_FILE, make_temporary_folder
from algorithm.parts.run_folder import RunFolder
from algorithm.parts.user_code import find_user_error
from algorithm.population.members import MemberFailed, Members
from algorithm.processes.host import Failure, ProcessHost, ServiceLost, ServiceSpec
from algorithm.processes.supervisor import STEP_SECONDS, Supervised, Supervisor, open_host
from algorithm.runs.lineage import LineageRow
from algorithm.training.signals import raise_on_stop_signals

CODE_SUFFIX = ".py"
ARRIVING = "arriving"  # folder in a run folder with files that are being received
# Index node, size and time of the last change of each file, by its path; of a checkpoint by its env steps, those of its
# manifest.
Stamps = dict[str | int, tuple[int, int, int]]
POLL_SECONDS = 1.0  # longest time of a reply while a member trains
SAVE_SECONDS = 60.0  # time limit for a process that saves the checkpoint of its member
STOP_SECONDS = 120.0  # time limit for services that stop their members, and send the checkpoints
Ended = tuple[LineageRow, LineageRow | MemberFailed]  # a task with its result


@dataclass(frozen=True, kw_only=True)
class MemberMessage:
    """A message of a service that trains members, or to one on another machine: files of a run folder, and a result.

    Attributes:
        checkpoints: checkpoints by their env steps, oldest first.
        others: all other files: settings, metrics, logs, results; also code, which the main process does not accept.
        result: the end of the task; None while the member trains.
    """

    checkpoints: dict[int, PackedFolder] = field(default_factory=dict)
    others: PackedFolder = field(default_factory=dict)
    result: LineageRow | MemberFailed | UserError | None = None


class MemberService:
    """A process of the machine with the run folders, which trains one member after another."""

    def __init__(self, members: Members, *numbers: int):
        self.members = members

    def open(self) -> None:
        """Do nothing: the reply states that the process has started."""

    def begin(self, task: LineageRow, files: None = None) -> MemberMessage:
        """Train a member until the end of an interval, or until SIGTERM, after which a checkpoint is saved."""
        try:
            with raise_on_stop_signals():
                return MemberMessage(result=self.members.run_task(task))
        except BaseException as error:  # of the environment, or of a user's network
            if is_stop(error):
                return MemberMessage(result=MemberFailed("its process was stopped"))
            named = find_user_error(error)
            if isinstance(named, UserError):
                return MemberMessage(result=UserError(str(named)))
            is_final = type(named).__name__ == "Diverged"
            return MemberMessage(result=MemberFailed(summarize_error(named), is_final))

    def stop(self) -> MemberMessage:
        """Do nothing: SIGTERM has stopped the member."""
        return MemberMessage()


class RemoteMemberService:
    """A service on a machine without the run folders: it trains members in a temporary one, and sends what has changed.

    A member trains in a `MemberService` of this machine, as on the machine of the population: it receives SIGTERM, and
    saves a checkpoint when it is stopped. It ends with this process.
    """

    def __init__(self, members: Members, *numbers: int):
        self._root = make_temporary_folder("samara-member-")
        self._original = members.folders[0].parent
        self._members = replace(members, folders=tuple(self._root / folder.name for folder in members.folders))
        self._host = ProcessHost()
        self._trainer: Any = None
        self._ticket: Any = None
        self._folder: RunFolder | None = None

    def open(self) -> None:
        """Prepare this process."""
        prepare_worker()

    def begin(self, task: LineageRow, files: MemberMessage) -> MemberMessage:
        """Begin to train a member from its files."""
        path = self._members.folders[task.member - 1]
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        folder = RunFolder(path)
        write_member(folder, files, keep=1)
        self._folder, self._sent = folder, list_stamps(folder)
        if self._ticket:  # an error has ended the task before
            self._end_trainer()
        if self._trainer is None:
            self._trainer = self._host.start(ServiceSpec(kind="Member", make=partial(MemberService, self._members)))
        self._ticket = self._host.call(self._trainer, "begin", task)
        return MemberMessage()

    def poll(self) -> MemberMessage:
        """Wait until the task has ended, or `POLL_SECONDS` have passed."""
        assert self._folder
        if not self._host.wait([self._ticket], POLL_SECONDS):
            return take_changes(self._folder, self._sent, needs_checkpoint=True)
        try:
            result, self._ticket = self._host.fetch(self._ticket).result.result, None
        except ServiceLost as error:
            self._end_trainer()
            result = MemberFailed(f"its process {error}")
        if isinstance(result, UserError):  # with the path on the main process
            result = UserError(str(result).replace(str(self._root), str(self._original)))
        return replace(take_changes(self._folder, self._sent), result=result)

    def stop(self) -> MemberMessage:
        """Stop the member, which saves a checkpoint first."""
        if self._ticket:
            self._host.interrupt(self._trainer)
            self._host.wait([self._ticket], SAVE_SECONDS)
            self._end_trainer()
        return take_changes(self._folder, self._sent) if self._folder else MemberMessage()

    def _end_trainer(self) -> None:
        self._host.kill(self._trainer)
        self._trainer = self._ticket = None


def read_member(folder: RunFolder, keep: int, log: Callable[[str], None]) -> MemberMessage:
    """Return the files from which a member continues on another machine: its newest checkpoint, the best, and the rest.

    `log` receives a line for each damaged checkpoint. Raises CheckpointError if no checkpoint can be read.
    """
    store = folder.checkpoints(keep)
    newest, best = store.latest(log), None
    with suppress(CheckpointError):  # best.json is damaged, which the run reports
        best = store.best.checkpoint
    sent = {int(each.folder.name) for each in (newest, best) if each}
    return _pack(folder, [name for name in list_stamps(folder) if isinstance(name, str) or name in sent])


def write_member(folder: RunFolder, files: MemberMessage, keep: int) -> None:
    """Write files into a run folder, which keeps `keep` checkpoints, and all of `files`.

    Checkpoints are written first: after an interruption the folder is as if the run had been killed.

    Raises:
        CheckpointError: a file was damaged on its way.
        OSError: a file cannot be written.
        ValueError: a path is outside of the folder.
    """
    store = folder.checkpoints(max(keep, len(files.checkpoints)))  # one of these may be the best, as a record states
    for env_steps, packed in files.checkpoints.items():
        with store.create(env_steps) as manifest:
            unpack_folder(packed, manifest)
    arriving = Manifest(folder.path / ARRIVING)
    try:
        unpack_folder(files.others, arriving)
        for name in files.others:
            path = resolve_inside(folder.path, Path(name))
            path.parent.mkdir(parents=True, exist_ok=True)
            (arriving.folder / name).replace(path)
    finally:
        shutil.rmtree(arriving.folder, ignore_errors=True)


def take_changes(folder: RunFolder, sent: Stamps, needs_checkpoint: bool = False) -> MemberMessage:
    """Return the files of a run folder that have changed, without code; if `needs_checkpoint`, only with a checkpoint.

    The run may write at the same time. A checkpoint that is removed meanwhile is left out. `sent` are the stamps of the
    files when they were last sent, which are updated.
    """
    stamps = list_stamps(folder)
    changed = [name for name, stamp in stamps.items() if sent.get(name) != stamp]
    if needs_checkpoint and not any(isinstance(name, int) for name in changed):
        return MemberMessage()
    sent |= stamps
    return _pack(folder, [name for name in changed if not str(name).endswith(CODE_SUFFIX)])


def list_stamps(folder: RunFolder) -> Stamps:
    """Return the stamps of all checkpoints and other files of a run, without locks and files that are being written."""
    store = folder.checkpoints(keep=1)
    paths: dict[str | int, Path] = {int(each.folder.name): each.folder / MANIFEST for each in store.list_all()}
    for parent, folders, names in os.walk(folder.path):  # which skips folders that are removed meanwhile
        folders[:] = [] if Path(parent) == store.folder else sorted(folders)
        for path in (Path(parent, name) for name in sorted(names)):
            if path.name != LOCK_FILE and path.suffix != UNFINISHED_SUFFIX and not path.is_symlink():
                paths[path.relative_to(folder.path).as_posix()] = path
    stamps = {}
    for name, path in paths.items():
        with suppress(FileNotFoundError):
            status = path.stat()
            stamps[name] = status.st_ino, status.st_size, status.st_mtime_ns
    return stamps


def _pack(folder: RunFolder, names: Iterable[str | int]) -> MemberMessage:
    """Return checkpoints and other files, by the names of `list_stamps`, without those that are removed meanwhile."""
    files = MemberMessage()
    for name in names:
        with suppress(CheckpointError, FileNotFoundError):
            if isinstance(name, int):
                path = folder.checkpoints(keep=1).get_folder(name)
                digests = Manifest.read(path).digests
                files.checkpoints[name] = pack_folder(path, digests, digests)
            else:
                files.others.update(pack_folder(folder.path, [name]))
    return files


@dataclass(kw_only=True)
class _Work:
    """A task of a service."""

    task: LineageRow
    deadline: float  # time at which it has to end
    lock: ExitStack = field(default_factory=ExitStack)  # holds that of the run folder, for a service elsewhere
    is_stopping: bool = False  # whether the service was requested to stop


class MemberFleet:
    """The services of a host that train the members of a population.

    Services on other machines have no access to the run folders: they receive the files that a member needs, and send
    its new checkpoints and all other changes. Raises UserError if Ray is not installed, or there is no cluster.
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
        waiting = list(tasks)
        self.supervisor.ensure(min(self.count, len(tasks)))
        try:
            while waiting or self._work:
                self._assign(waiting)
                results = [each for event in self.supervisor.poll(STEP_SECONDS) for each in self._receive(*event)]
                late = [service for service, work in self._work.items() if work.deadline <= time.monotonic()]
                lost = ServiceLost(f"has not ended its interval within {self.timeout:g} s (population_config.timeout)")
                yield from [*results, *(each for service in late for each in self._receive(service, lost))]
                now, limit = time.monotonic(), self.start_timeout
                if not self.supervisor.n_open and all(now - each.since > limit for each in self.supervisor.services):
                    raise UserError(
                        f"no member has started within {limit:g} s (cluster_config.start_timeout); there "
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

    def _receive(self, service: Supervised, reply: Any) -> Iterator[Ended]:
        """Handle a reply of a service. Yield its task with the result, if it has ended."""
        if isinstance(reply, ServiceLost):
            yield from self._replace(service, str(reply), f"its process {reply}")
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

    def _write(self, service: Supervised, reply: MemberMessage) -> None:
        """Write the files of a reply into the run folder of the member.

        Raises:
            CheckpointError: a file was damaged on its way.
            OSError: a file cannot be written.
            ValueError: a file is code, or outside of the run folder.
        """
        if any(name.endswith(CODE_SUFFIX) for name in reply.others):
            raise ValueError("a service has sent code")
        write_member(self._folders[self._work[service].task.member - 1], reply, self.keep)

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
        for service, reply in self.supervisor.gather(STOP_SECONDS, list(self._work)):
            if isinstance(reply, ServiceLost):
                self.supervisor.end(service)
            elif isinstance(reply, MemberMessage):
                with suppress(CheckpointError, ValueError):
                    self._write(service, reply)
            if not service.calls:  # it replies in the order of its calls
                self._release(service)
        for service in list(self._work):  # it hangs
            self.supervisor.end(service)
            self._release(service)
