"""The service that trains members of a population on a machine without their run folders."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from algorithm.adapters.process_setup import prepare_worker
from algorithm.checkpointing.manifest import CheckpointError
from algorithm.errors import UserError, summarize_error
from algorithm.parts.lock import make_temporary_folder
from algorithm.parts.run_folder import RunFolder
from algorithm.population.member import MemberReply, Members, MemberService
from algorithm.population.member_files import ChangedFiles, MemberFiles, write_member
from algorithm.population.rounds import MemberFailed, MemberReport, MemberTask
from algorithm.processes.host import ServiceLost, ServiceSpec
from algorithm.processes.process_host import ProcessHost

POLL_SECONDS = 1.0  # longest time of a reply while a member trains
STOP_SECONDS = 60.0  # time limit for a process that saves the checkpoint of its member


class RemoteMemberService:
    """A service that trains members in a temporary folder, one after the other, and replies with what has changed.

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

    def begin(self, task: MemberTask, files: MemberFiles) -> MemberReply:
        """Begin to train a member from its files."""
        return self._reply(self._begin, task, files)

    def poll(self) -> MemberReply:
        """Wait until the task has ended, or `POLL_SECONDS` have passed."""
        return self._reply(self._poll)

    def stop(self) -> MemberReply:
        """Stop the member, which saves a checkpoint first."""
        return self._reply(self._stop)

    def _begin(self, task: MemberTask, files: MemberFiles) -> MemberReply:
        path = self._members.folders[task.member - 1]
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        folder = RunFolder(path)
        write_member(folder, files, keep=1)
        self._changed = ChangedFiles(folder)
        if self._trainer is None:
            self._trainer = self._host.start(ServiceSpec(kind="Member", make=partial(MemberService, self._members)))
        self._ticket = self._host.call(self._trainer, "begin", task)
        return MemberReply()

    def _poll(self) -> MemberReply:
        assert self._changed
        if not self._host.wait([self._ticket], POLL_SECONDS):
            return MemberReply(files=self._changed.take() if self._changed.has_checkpoint() else None)
        result = self._fetch_result()
        return MemberReply(files=self._changed.take(), result=result)

    def _fetch_result(self) -> MemberReport | MemberFailed:
        """Return the end of the task. Raises UserError for an error of the user."""
        try:
            result = self._host.fetch(self._ticket).result
        except ServiceLost as error:
            self._end_trainer()
            return MemberFailed(f"its process {error}")
        if isinstance(result, UserError):
            raise result
        return result

    def _stop(self) -> MemberReply:
        if self._trainer:
            self._host.interrupt(self._trainer)
            self._host.wait([self._ticket], STOP_SECONDS)
            self._end_trainer()
        return MemberReply(files=self._changed.take() if self._changed else None)

    def _end_trainer(self) -> None:
        if self._trainer:
            self._host.kill(self._trainer)
        self._trainer = None

    def _reply(self, call: Callable[..., MemberReply], *arguments: Any) -> MemberReply:
        """Return the reply of `call`, or one with the error that it raised, with the paths of the main process."""
        try:
            return call(*arguments)
        except UserError as error:
            files = self._changed.take() if self._changed else None
            return MemberReply(files=files, result=UserError(self._restore_paths(str(error))))
        except (CheckpointError, OSError, ValueError) as error:
            self._end_trainer()
            return MemberReply(result=MemberFailed(self._restore_paths(summarize_error(error))))

    def _restore_paths(self, text: str) -> str:
        return text.replace(str(self._root), str(self._original))
