"""Processes of this machine that train the members of a population."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from math import inf
from multiprocessing.connection import Connection, wait

from algorithm.adapters.process_setup import PROCESSES, prepare_worker
from algorithm.errors import UserError, describe_exit, is_stop, summarize_error
from algorithm.parts.user_code import find_user_error
from algorithm.population.member import Members
from algorithm.population.rounds import MemberFailed, MemberReport, MemberTask
from algorithm.processes import worker
from algorithm.training.signals import Terminated, raise_on_stop_signals

STOP_SECONDS = 60.0  # time limit for a process that saves the checkpoint of its member


class MemberProcess:
    """A process that trains one member after another.

    Args:
        members: the members.
        timeout: time limit of a task in seconds; None for none.

    Attributes:
        task: the task that it works on; None if it waits for one.
        deadline: time at which the task has to end.
        connection: connection to the process.
    """

    def __init__(self, members: Members, timeout: float | None):
        self.task: MemberTask | None = None
        self.timeout, self.deadline = timeout, inf
        self.connection, theirs = multiprocessing.Pipe()
        self._process = PROCESSES.Process(target=_serve, args=(members, theirs))
        self._is_stopping = False
        self._process.start()
        theirs.close()

    @property
    def is_alive(self) -> bool:
        """Return whether it can train a further member."""
        return not self.connection.closed

    def begin(self, task: MemberTask) -> None:
        """Begin a task."""
        self.task = task
        self.deadline = time.monotonic() + (self.timeout or inf)
        with suppress(BrokenPipeError):  # it has ended, which `finish` reports
            self.connection.send(task)

    def finish(self) -> MemberReport | MemberFailed:
        """Return the result of the task, after `wait_for_processes`. Raises UserError that the process has sent."""
        self.task = None
        try:
            if not self.connection.poll():
                self.kill()
                return MemberFailed(
                    f"it has not ended its interval within {self.timeout:g} s (population_config.timeout)"
                )
            result = self.connection.recv()
        except (EOFError, OSError):
            self._process.join()
            self.connection.close()
            return MemberFailed(f"its process {describe_exit(self._process.exitcode or 0)}")
        if isinstance(result, UserError):
            raise result
        return result

    def request_stop(self) -> None:
        """Request the end of the process, which saves the checkpoint of a member that it trains."""
        if self.is_alive and self._process.is_alive() and not self._is_stopping:
            self._is_stopping = True  # a second signal would interrupt its tick
            self._process.terminate()

    def stop(self) -> None:
        """Wait until the process has ended, and kill it after `STOP_SECONDS`."""
        self.request_stop()
        self._process.join(STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End the process at once."""
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self.connection.close()


def wait_for_processes(processes: Sequence[MemberProcess], seconds: float = inf) -> list[MemberProcess]:
    """Wait until a process has ended its task, has ended itself, or has exceeded the time limit; return all of these.

    Args:
        processes: processes with a task.
        seconds: time after which none is returned.
    """
    left = min([seconds, *(each.deadline - time.monotonic() for each in processes)])
    ready = wait([each.connection for each in processes], None if left == inf else max(0.0, left))
    now = time.monotonic()
    return [each for each in processes if each.connection in ready or each.deadline <= now]


class MemberProcesses:
    """A runner of members in processes, which are started when they are needed.

    Args:
        members: the members.
        count: number of processes at a time.
        timeout: time limit of a task in seconds; None for none.
    """

    def __init__(self, members: Members, count: int, timeout: float | None):
        self.members, self.count, self.timeout = members, count, timeout
        self._processes: list[MemberProcess] = []

    def train(self, tasks: Sequence[MemberTask]) -> Iterator[tuple[MemberTask, MemberReport | MemberFailed]]:
        """Yield each task with its result, as `MemberRunner` requires."""
        waiting = list(tasks)
        try:
            while waiting or self._list_busy():
                self._assign(waiting)
                for each in wait_for_processes(self._list_busy()):
                    task, result = each.task, each.finish()
                    assert task is not None
                    if not each.is_alive:
                        self._processes.remove(each)
                    yield task, result
        finally:
            if self._list_busy():  # the caller needs no further results
                self.close()

    def close(self) -> None:
        """Stop all processes; those that train save a checkpoint first."""
        for each in self._processes:
            each.request_stop()
        for each in self._processes:
            each.stop()
        self._processes.clear()

    def _list_busy(self) -> list[MemberProcess]:
        return [each for each in self._processes if each.task]

    def _assign(self, waiting: list[MemberTask]) -> None:
        """Give the first tasks to processes that wait, or that are started."""
        while waiting and len(self._list_busy()) < self.count:
            idle = next((each for each in self._processes if not each.task), None)
            if idle is None:
                idle = MemberProcess(self.members, self.timeout)
                self._processes.append(idle)
            idle.begin(waiting.pop(0))


def _serve(members: Members, connection: Connection) -> None:
    """Train members in this process until the main process ends it, or has ended."""
    prepare_worker()
    if hasattr(os, "setsid"):  # a Ctrl-C in the terminal reaches the main process only, which ends this one
        os.setsid()
    worker.end_with_parent()
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
    except BaseException as error:  # of the environment, or of a user's network
        if is_stop(error):
            raise
        named = find_user_error(error)
        if isinstance(named, UserError):
            return UserError(str(named))
        return MemberFailed(summarize_error(named), is_final=type(named).__name__ == "Diverged")
