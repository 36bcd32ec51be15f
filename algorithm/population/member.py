"""Members of a population: their training until the end of an interval, its services, and their files as messages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

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
from algorithm.config.yaml_layers import Tree, load_defaults, merge, nest
from algorithm.errors import UserError, is_stop, summarize_error
from algorithm.parts.lock import LOCK_FILE, check_links, make_temporary_folder
from algorithm.parts.run_folder import RunFolder
from algorithm.parts.user_code import find_user_error
from algorithm.population.folder import LineageRow
from algorithm.processes.host import ProcessHost, ServiceLost, ServiceSpec
from algorithm.runs.callbacks import RunResult
from algorithm.training.signals import raise_on_stop_signals

CODE_SUFFIX = ".py"
ARRIVING = "arriving"  # folder in a run folder with files that are being received
# Index node, size and time of the last change of each file, by its path; of a checkpoint by its env steps, those of its
# manifest.
Stamps = dict[str | int, tuple[int, int, int]]
SOURCE = "the settings of the member"
LOG_FILE = "log.txt"
POLL_SECONDS = 1.0  # longest time of a reply while a member trains
STOP_SECONDS = 60.0  # time limit for a process that saves the checkpoint of its member
# A function of (environment, folder, settings, variant, callbacks, log, pause_at) that trains until these env steps.
RunTraining = Callable[..., RunResult]


class MemberFailed(Exception):
    """A member could not be trained until the end of an interval.

    Args:
        message: what happened, in one line.
        is_final: whether another attempt would fail in the same way.
    """

    def __init__(self, message: str, is_final: bool = False):
        super().__init__(message, is_final)
        self.message, self.is_final = message, is_final

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, kw_only=True)
class Members:
    """The members of a population, for any process that trains one.

    Everything that an interval needs is in the run folder of the member, so that any process can train any member.

    Attributes:
        environment: name or path of the environment folder.
        variant: variant of its config.yaml; None if it is not known.
        folders: run folder of each member.
        tree: settings of the population.
        train: trains in a run folder.
    """

    environment: str
    variant: str | None
    folders: tuple[Path, ...]
    tree: Tree
    train: RunTraining

    def run_task(self, task: LineageRow) -> LineageRow:
        """Train a member until the end of an interval, from its newest checkpoint. Return the row as it has ended.

        Raises:
            Exception: those of `algorithm.runs.build.train`.
        """
        folder = RunFolder(self.folders[task.member - 1])
        check_links(folder.given_path)
        settings = folder.load_settings((SOURCE, make_member_tree(self.tree, task.member, task.settings)))
        with folder.lock, (folder.path / LOG_FILE).open("a", encoding="utf-8") as file:
            log = partial(print, file=file, flush=True)
            result = self.train(self.environment, folder, settings, self.variant, [], log, task.env_steps)
        returns = list(result.returns.values())
        if result.evaluation is not None:
            returns = [played.mean for played in result.evaluation.values()]
        return replace(
            task,
            env_steps=result.counters.env_steps,
            mean_return=fmean(returns),
            goal_reached=bool(result.goal_reached),
            goal=settings.goal.return_ if settings.goal else None,
        )


def make_member_tree(tree: Tree, member: int, values: Mapping[str, Any]) -> Tree:
    """Return the settings of a member, which is a run of its own: its seed follows from its number.

    On a cluster, the members have no rollout actors: each one trains as in one process.

    Args:
        tree: settings of the population.
        member: number of the member, from 1.
        values: values of the settings that differ between members, by path.
    """
    own = merge(tree, {"base_config": {"seed": tree["base_config"]["seed"] + member - 1}})
    own |= {section: load_defaults()[section] for section in ("population_config", "cluster_config")}
    if tree["base_config"]["runtime"].casefold() == "cluster":
        own = merge(own, {"base_config": {"runtime": "LOCAL"}})
    for path, value in values.items():
        own = merge(own, nest(path, value))
    return own


@dataclass(frozen=True, kw_only=True)
class MemberReply:
    """A reply of a service that trains members.

    Attributes:
        files: the files that have changed since the last reply; None without any, or if the machine is the same.
        result: the end of the task; None while the member trains.
    """

    files: MemberFiles | None = None
    result: LineageRow | MemberFailed | UserError | None = None


class MemberService:
    """A process of the machine with the run folders, which trains one member after another.

    Args:
        members: the members.
        numbers: the numbers of the service, which are not used.
    """

    def __init__(self, members: Members, *numbers: int):
        self.members = members

    def open(self) -> None:
        """Do nothing: the reply states that the process has started."""

    def begin(self, task: LineageRow, files: None = None) -> MemberReply:
        """Train a member until the end of an interval, or until SIGTERM, after which a checkpoint is saved."""
        try:
            with raise_on_stop_signals():
                return MemberReply(result=self.members.run_task(task))
        except BaseException as error:  # of the environment, or of a user's network
            if is_stop(error):
                return MemberReply(result=MemberFailed("its process was stopped"))
            named = find_user_error(error)
            if isinstance(named, UserError):
                return MemberReply(result=UserError(str(named)))
            is_final = type(named).__name__ == "Diverged"
            return MemberReply(result=MemberFailed(summarize_error(named), is_final))

    def stop(self) -> MemberReply:
        """Do nothing: SIGTERM has stopped the member."""
        return MemberReply()


class RemoteMemberService:
    """A service on a machine without the run folders: it trains members in a temporary one, and sends what has changed.

    A member trains in a `MemberService` of this machine, as on the machine of the population: it receives SIGTERM, and
    saves a checkpoint when it is stopped. It ends with this process.

    Args:
        members: the members, with the run folders of the main process.
        numbers: the numbers of the service, which are not used.
    """

    def __init__(self, members: Members, *numbers: int):
        self._root = make_temporary_folder("samara-member-")
        self._original = members.folders[0].parent
        self._members = replace(members, folders=tuple(self._root / folder.name for folder in members.folders))
        self._host = ProcessHost()
        self._trainer: Any = None
        self._ticket: Any = None
        self._changed: ChangedFiles | None = None

    def open(self) -> None:
        """Prepare this process."""
        prepare_worker()

    def begin(self, task: LineageRow, files: MemberFiles) -> MemberReply:
        """Begin to train a member from its files."""
        path = self._members.folders[task.member - 1]
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        write_member(RunFolder(path), files, keep=1)
        self._changed = ChangedFiles(RunFolder(path))
        if self._ticket:  # an error has ended the task before
            self._end_trainer()
        if self._trainer is None:
            self._trainer = self._host.start(ServiceSpec(kind="Member", make=partial(MemberService, self._members)))
        self._ticket = self._host.call(self._trainer, "begin", task)
        return MemberReply()

    def poll(self) -> MemberReply:
        """Wait until the task has ended, or `POLL_SECONDS` have passed."""
        assert self._changed
        if not self._host.wait([self._ticket], POLL_SECONDS):
            return MemberReply(files=self._changed.take() if self._changed.has_checkpoint() else None)
        try:
            result, self._ticket = self._host.fetch(self._ticket).result.result, None
        except ServiceLost as error:
            self._end_trainer()
            result = MemberFailed(f"its process {error}")
        if isinstance(result, UserError):  # with the path on the main process
            result = UserError(str(result).replace(str(self._root), str(self._original)))
        return MemberReply(files=self._changed.take(), result=result)

    def stop(self) -> MemberReply:
        """Stop the member, which saves a checkpoint first."""
        if self._ticket:
            self._host.interrupt(self._trainer)
            self._host.wait([self._ticket], STOP_SECONDS)
            self._end_trainer()
        return MemberReply(files=self._changed.take() if self._changed else None)

    def _end_trainer(self) -> None:
        if self._trainer:
            self._host.kill(self._trainer)
        self._trainer = self._ticket = None


@dataclass(frozen=True, kw_only=True)
class MemberFiles:
    """Files of a run folder.

    Attributes:
        checkpoints: checkpoints by their env steps, oldest first.
        others: all other files: settings, metrics, logs, results; also code, which the main process does not accept.
    """

    checkpoints: dict[int, PackedFolder] = field(default_factory=dict)
    others: PackedFolder = field(default_factory=dict)


def read_member(folder: RunFolder, keep: int, log: Callable[[str], None]) -> MemberFiles:
    """Return the files from which a member continues on another machine: its newest checkpoint, the best, and the rest.

    Args:
        folder: the run folder.
        keep: the number of checkpoints that the run keeps.
        log: receives a line for each damaged checkpoint.

    Raises:
        CheckpointError: no checkpoint can be read.
    """
    store = folder.checkpoints(keep)
    newest, best = store.latest(log), None
    with suppress(CheckpointError):  # best.json is damaged, which the run reports
        best = store.best.checkpoint
    sent = {int(each.folder.name) for each in (newest, best) if each}
    return _pack(folder, [name for name in _list_stamps(folder) if isinstance(name, str) or name in sent])


def write_member(folder: RunFolder, files: MemberFiles, keep: int) -> None:
    """Write files into a run folder.

    Checkpoints are written first: after an interruption the folder is as if the run had been killed.

    Args:
        folder: the run folder.
        files: the files.
        keep: the number of checkpoints that the folder keeps; all of `files` are kept.

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


class ChangedFiles:
    """The files of a run folder that have changed since they were last sent.

    Args:
        folder: the run folder, all of whose files are known to the receiver.
    """

    def __init__(self, folder: RunFolder):
        self._folder, self._sent = folder, _list_stamps(folder)

    def has_checkpoint(self) -> bool:
        """Return whether there is a checkpoint that has not been sent."""
        return any(isinstance(name, int) for name in self._find_changed(_list_stamps(self._folder)))

    def take(self) -> MemberFiles:
        """Return all changes, without code; they then count as sent.

        The run may write at the same time. A checkpoint that is removed meanwhile is left out.
        """
        stamps = _list_stamps(self._folder)
        changed = self._find_changed(stamps)
        self._sent |= stamps
        return _pack(self._folder, [name for name in changed if not str(name).endswith(CODE_SUFFIX)])

    def _find_changed(self, stamps: Stamps) -> list[str | int]:
        return [name for name, stamp in stamps.items() if self._sent.get(name) != stamp]


def _list_stamps(folder: RunFolder) -> Stamps:
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


def _pack(folder: RunFolder, names: Iterable[str | int]) -> MemberFiles:
    """Return checkpoints and other files, by the names of `_list_stamps`, without those that are removed meanwhile."""
    files = MemberFiles()
    for name in names:
        with suppress(CheckpointError, FileNotFoundError):
            if isinstance(name, int):
                path = folder.checkpoints(keep=1).get_folder(name)
                digests = Manifest.read(path).digests
                files.checkpoints[name] = pack_folder(path, digests, digests)
            else:
                files.others.update(pack_folder(folder.path, [name]))
    return files
