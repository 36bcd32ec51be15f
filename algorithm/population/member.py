"""The training of one member of a population until the end of an interval, and the services that do it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial, wraps
from pathlib import Path
from statistics import fmean
from typing import Any

from algorithm.adapters.process_setup import prepare_worker
from algorithm.checkpointing.manifest import CheckpointError
from algorithm.config.yaml_layers import Tree, load_defaults, merge, nest
from algorithm.errors import UserError, is_stop, summarize_error
from algorithm.parts.lock import check_links, make_temporary_folder
from algorithm.parts.run_folder import RunFolder
from algorithm.parts.user_code import find_user_error
from algorithm.population.folder import LineageRow
from algorithm.population.member_files import ChangedFiles, MemberFiles, write_member
from algorithm.processes.host import ServiceLost, ServiceSpec
from algorithm.processes.process_host import ProcessHost
from algorithm.runs.callbacks import RunResult
from algorithm.training.signals import raise_on_stop_signals

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


def _reply_with_errors(call: Callable[..., MemberReply]) -> Callable[..., MemberReply]:
    """Return a method of `RemoteMemberService` that replies with an error of files instead of raising it."""

    @wraps(call)
    def reply(self: RemoteMemberService, *arguments: Any) -> MemberReply:
        try:
            return call(self, *arguments)
        except (CheckpointError, OSError, ValueError) as error:
            self._end_trainer()
            return MemberReply(result=MemberFailed(self._restore_paths(summarize_error(error))))

    return reply


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

    @_reply_with_errors
    def begin(self, task: LineageRow, files: MemberFiles) -> MemberReply:
        """Begin to train a member from its files."""
        path = self._members.folders[task.member - 1]
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        write_member(RunFolder(path), files, keep=1)
        self._changed = ChangedFiles(RunFolder(path))
        if self._trainer is None:
            self._trainer = self._host.start(ServiceSpec(kind="Member", make=partial(MemberService, self._members)))
        self._ticket = self._host.call(self._trainer, "begin", task)
        return MemberReply()

    @_reply_with_errors
    def poll(self) -> MemberReply:
        """Wait until the task has ended, or `POLL_SECONDS` have passed."""
        assert self._changed
        if not self._host.wait([self._ticket], POLL_SECONDS):
            return MemberReply(files=self._changed.take() if self._changed.has_checkpoint() else None)
        try:
            result = self._host.fetch(self._ticket).result.result
        except ServiceLost as error:
            self._end_trainer()
            result = MemberFailed(f"its process {error}")
        if isinstance(result, UserError):
            result = UserError(self._restore_paths(str(result)))
        return MemberReply(files=self._changed.take(), result=result)

    @_reply_with_errors
    def stop(self) -> MemberReply:
        """Stop the member, which saves a checkpoint first."""
        if self._trainer:
            self._host.interrupt(self._trainer)
            self._host.wait([self._ticket], STOP_SECONDS)
            self._end_trainer()
        return MemberReply(files=self._changed.take() if self._changed else None)

    def _end_trainer(self) -> None:
        if self._trainer:
            self._host.kill(self._trainer)
        self._trainer = None

    def _restore_paths(self, text: str) -> str:
        """Return a message with the paths of the main process."""
        return text.replace(str(self._root), str(self._original))
