"""A process of a cluster that trains members of a population, one after the other, on its own machine."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace

from algorithm.adapters.process_setup import prepare_worker
from algorithm.checkpointing.manifest import CheckpointError
from algorithm.errors import UserError, summarize_error
from algorithm.parts.lock import make_temporary_folder
from algorithm.parts.run_folder import RunFolder
from algorithm.population.member import Members
from algorithm.population.member_files import ChangedFiles, MemberFiles, write_member
from algorithm.population.member_processes import MemberProcess, wait_for_processes
from algorithm.population.rounds import MemberFailed, MemberReport, MemberTask

POLL_SECONDS = 1.0  # longest time of a reply while a member trains


@dataclass(frozen=True, kw_only=True)
class MemberReply:
    """A reply to the main process.

    Attributes:
        files: the files that have changed since the last reply; None without a new checkpoint, before the end.
        result: the end of the task; None while the member trains.
    """

    files: MemberFiles | None = None
    result: MemberReport | MemberFailed | UserError | None = None


class MemberServer:
    """A process that trains members in a folder of its machine, and replies to calls with what has changed.

    The member trains in a process of its own, as on the machine of the population: it receives signals, and saves a
    checkpoint when it is stopped. It ends with this process.

    Args:
        members: the members, with the run folders of the main process.
        timeout: time limit of a task in seconds; None for none.
    """

    def __init__(self, members: Members, timeout: float | None):
        self._root = make_temporary_folder("samara-member-")
        self._original = members.folders[0].parent
        folders = tuple(self._root / folder.name for folder in members.folders)
        self._members, self._timeout = replace(members, folders=folders), timeout
        self._process: MemberProcess | None = None
        self._changed: ChangedFiles | None = None

    def open(self) -> None:
        """Prepare this process."""
        prepare_worker()

    def begin(self, task: MemberTask, files: MemberFiles) -> MemberReply:
        """Begin to train a member from its files."""
        return self._reply(lambda: self._begin(task, files))

    def poll(self) -> MemberReply:
        """Wait until the task has ended, or `POLL_SECONDS` have passed."""
        return self._reply(lambda: self._poll(POLL_SECONDS))

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
        if self._process is None:
            self._process = MemberProcess(self._members, self._timeout)
        self._process.begin(task)
        return MemberReply()

    def _poll(self, seconds: float) -> MemberReply:
        assert self._process and self._changed
        if not wait_for_processes([self._process], seconds):
            return MemberReply(files=self._changed.take() if self._changed.has_checkpoint() else None)
        result = self._process.finish()
        if not self._process.is_alive:
            self._process = None
        return MemberReply(files=self._changed.take(), result=result)

    def _stop(self) -> MemberReply:
        if self._process:
            self._process.stop()
            self._process = None
        return MemberReply(files=self._changed.take() if self._changed else None)

    def _reply(self, call: Callable[[], MemberReply]) -> MemberReply:
        """Return the reply of `call`, or one with the error that it raised, with the paths of the main process."""
        try:
            return call()
        except UserError as error:
            files = self._changed.take() if self._changed else None
            return MemberReply(files=files, result=UserError(self._restore_paths(str(error))))
        except (CheckpointError, OSError, ValueError) as error:
            if self._process:
                self._process.kill()
                self._process = None
            return MemberReply(result=MemberFailed(self._restore_paths(summarize_error(error))))

    def _restore_paths(self, text: str) -> str:
        return text.replace(str(self._root), str(self._original))


def make_member_server(members: Members, timeout: float | None, index: int, replacements: int) -> MemberServer:
    """Return the server of the actor `index`, before which `replacements` actors with this number have ended."""
    return MemberServer(members, timeout)
