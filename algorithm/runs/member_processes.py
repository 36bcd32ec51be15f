"""Processes of this machine that train the members of a population."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from algorithm.adapters.process_setup import prepare_worker
from algorithm.errors import UserError, describe_exit, summarize_error
from algorithm.runs.member import Members
from algorithm.runs.user_code import find_user_error
from algorithm.runs.worker import end_with_parent
from algorithm.runtimes.population import MemberFailed, MemberReport, MemberTask
from algorithm.runtimes.signals import Terminated, raise_on_stop_signals

STOP_SECONDS = 60.0  # time limit for a process that saves the checkpoint of its member


@dataclass(kw_only=True)
class _MemberProcess:
    """A process, its connection, and the task that it works on; None if it waits."""

    process: BaseProcess
    connection: Connection
    task: MemberTask | None = None


class MemberProcesses:
    """A runner of members in processes, which are started when they are needed and train one member after another.

    Args:
        members: the members.
        count: number of processes at a time.
    """

    def __init__(self, members: Members, count: int):
        self.members, self.count = members, count
        self._processes: list[_MemberProcess] = []

    def train(self, tasks: Sequence[MemberTask]) -> Iterator[tuple[MemberTask, MemberReport | MemberFailed]]:
        """Yield each task with its result, as `MemberRunner` requires."""
        waiting = list(tasks)
        try:
            while waiting or self._list_busy():
                self._assign(waiting)
                for each in self._wait():
                    task, each.task = each.task, None
                    assert task is not None
                    yield task, self._receive(each)
        finally:
            if self._list_busy():  # the caller needs no further results
                self.close()

    def close(self) -> None:
        """Stop all processes; those that train save a checkpoint first."""
        for each in self._processes:
            if each.process.is_alive():
                each.process.terminate()
        for each in self._processes:
            each.process.join(STOP_SECONDS)
            if each.process.is_alive():
                each.process.kill()
                each.process.join()
            each.connection.close()
        self._processes.clear()

    def _list_busy(self) -> list[_MemberProcess]:
        return [each for each in self._processes if each.task]

    def _assign(self, waiting: list[MemberTask]) -> None:
        """Give the first tasks to processes that wait, or that are started."""
        while waiting and len(self._list_busy()) < self.count:
            idle = next((each for each in self._processes if not each.task), None) or self._start()
            task = waiting.pop(0)
            idle.task = task
            with suppress(BrokenPipeError):  # it has ended, which `_receive` reports
                idle.connection.send(task)

    def _start(self) -> _MemberProcess:
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=_serve, args=(self.members, theirs))
        process.start()
        theirs.close()
        started = _MemberProcess(process=process, connection=ours)
        self._processes.append(started)
        return started

    def _wait(self) -> list[_MemberProcess]:
        """Wait for processes that have ended their task, or that have ended, and return them."""
        busy = {each.connection: each for each in self._list_busy()}
        return [busy[connection] for connection in wait(list(busy))]  # type: ignore[index]

    def _receive(self, each: _MemberProcess) -> MemberReport | MemberFailed:
        """Return the result of a process, which is removed if it has ended. Raises UserError that it has sent."""
        try:
            result = each.connection.recv()
        except (EOFError, OSError):
            each.process.join()
            self._processes.remove(each)
            each.connection.close()
            return MemberFailed(f"its process {describe_exit(each.process.exitcode or 0)}")
        if isinstance(result, UserError):
            raise result
        return result


def _serve(members: Members, connection: Connection) -> None:
    """Train members in this process until the main process ends it, or has ended."""
    prepare_worker()
    if hasattr(os, "setsid"):  # a Ctrl-C in the terminal reaches the main process only, which ends this one
        os.setsid()
    end_with_parent()
    try:
        with raise_on_stop_signals():
            while True:
                task = connection.recv()
                connection.send(_run_task(members, task))
    except (Terminated, KeyboardInterrupt, EOFError, BrokenPipeError, ConnectionResetError):
        pass
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _run_task(members: Members, task: MemberTask) -> MemberReport | MemberFailed | UserError:
    """Return the report of a task, or the error that ended it."""
    try:
        return members.run_task(task)
    except Terminated:
        raise
    except (Exception, SystemExit) as error:  # of the environment, or of a user's network
        named = find_user_error(error)
        if isinstance(named, UserError):
            return UserError(str(named))
        return MemberFailed(summarize_error(named), is_final=type(named).__name__ == "Diverged")
