"""The worker processes of a run, as the main process sees them: start, pause, save, replace, stop."""

from __future__ import annotations

import logging
import multiprocessing
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch

from algorithm.adapters.adapter import EnvironmentCrashed, EnvironmentStartError
from algorithm.checkpointing.checkpoint import make_prefix
from algorithm.checkpointing.manifest import Manifest
from algorithm.checkpointing.writer import describe_all, write_learner, write_learner_state
from algorithm.errors import describe_exit
from algorithm.processes.messages import Continue, LogRecord, Ready, Report, Save, Saved, Start, Stop
from algorithm.processes.shared_memory import SharedMemory
from algorithm.specs import Role
from algorithm.training.components import TrainingComponents
from algorithm.training.progress import Counters

LOG = logging.getLogger(__name__)
STOP_SECONDS = 5.0  # seconds after which a worker that does not end is killed
# Starts a worker: number, number of its replacements, and the connection to the main process.
Spawn = Callable[[int, int, Connection], BaseProcess]


class WorkerState(Enum):
    """The state of a worker: it opens its environments, runs, or waits for a message."""

    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"


@dataclass(kw_only=True)
class Worker:
    """A worker process.

    Attributes:
        index: its number.
        replacements: the number of workers with this number that ended before it.
        first_step: env steps that workers with this number had made when it was started.
        process: the process.
        connection: the connection to it.
        state: what it does.
    """

    index: int
    replacements: int
    first_step: int
    process: BaseProcess
    connection: Connection
    state: WorkerState = WorkerState.STARTING


@dataclass(kw_only=True)
class WorkerGroup:
    """The workers of a run.

    Args:
        spawn: starts a worker process.
        memory: the memory that the processes share.
        count: the number of workers.
        max_replacements: the number of workers that are replaced before the run ends; None for no limit.

    Attributes:
        roles: the roles of the environments, the same in all workers.
    """

    spawn: Spawn
    memory: SharedMemory
    count: int
    max_replacements: int | None
    roles: Mapping[str, Role] = field(default_factory=dict)
    workers: list[Worker] = field(default_factory=list)

    def open(self) -> None:
        """Start all workers, and wait until their environments are open. Raises what a worker raised."""
        self.workers = [self._start(index, 0) for index in range(self.count)]
        for worker in self.workers:
            roles = self._receive_roles(worker)
            if worker.index and roles != self.roles:
                raise EnvironmentStartError("the environments of the workers have different spaces")
            self.roles = roles

    def start(self, counters: Counters, checkpoint: Path | None) -> None:
        """Let all workers build their components, whose shared tensors exist now."""
        for worker in self.workers:
            self._build(worker, Start(counters=counters, checkpoint=checkpoint))

    def resume(self, message: Continue, limit: float) -> None:
        """Continue all workers that wait, until they have made this number of env steps since they were opened."""
        self.memory.limit = int(min(limit, 2**62))
        for worker in self.workers:
            if worker.state is WorkerState.WAITING:
                worker.state = WorkerState.RUNNING
                with suppress(OSError):  # its end is noticed when its connection is read
                    worker.connection.send(message)

    def receive(self, timeout: float, counters: Counters) -> Iterable[tuple[Worker, Report | None]]:
        """Yield the reports that arrive within `timeout` seconds with their workers; None for a worker that ended.

        A replaced worker that is ready starts with `counters`.
        """
        by_connection = {
            worker.connection: worker for worker in self.workers if worker.state is not WorkerState.WAITING
        }
        for connection in wait(list(by_connection), timeout):
            worker = by_connection[connection]  # type: ignore[index]
            try:
                message = worker.connection.recv()
            except (EOFError, OSError):
                yield worker, None
                continue
            if isinstance(message, Report):
                worker.state = WorkerState.WAITING if message.waits else WorkerState.RUNNING
                yield worker, message
            elif isinstance(message, Ready):
                self._build(worker, Start(counters=counters, checkpoint=None))
            elif isinstance(message, LogRecord):
                self._log(worker, message)

    @property
    def is_running(self) -> bool:
        """Return whether any worker runs."""
        return any(worker.state is WorkerState.RUNNING for worker in self.workers)

    def pause(self) -> None:
        """Let every worker report after its current tick."""
        self.memory.limit = 0

    def replace(self, worker: Worker) -> None:
        """Start another worker with an empty replay in place of one that ended.

        Raises:
            EnvironmentCrashed: too many workers have ended, or this one has not made an env step.
        """
        ended = f"worker {worker.index} (process {worker.process.pid}) {_describe_end(worker)}"
        replaced = sum(each.replacements for each in self.workers)
        if self.memory.counts[worker.index, 0] == worker.first_step:
            raise EnvironmentCrashed(f"{ended} before its first env step")
        if self.max_replacements is not None and replaced >= self.max_replacements:
            raise EnvironmentCrashed(
                f"{ended} after {replaced} others (base_config.max_env_restarts is {self.max_replacements})"
            )
        LOG.warning(f"{ended}: another worker with an empty replay replaces it")
        worker.connection.close()
        self.workers[worker.index] = self._start(worker.index, worker.replacements + 1)

    def drop(self, worker: Worker) -> None:
        """Kill a worker, if it has not ended, without a replacement."""
        worker.process.kill()
        worker.process.join()
        worker.connection.close()
        self.workers.remove(worker)

    def save(self, training: TrainingComponents, counters: Counters, manifest: Manifest) -> dict[str, Any]:
        """Write the learners of `training`, and let the workers, which wait, write their experience.

        The experience of a worker that has ended is left out.

        Args:
            training: the components of the main process.
            counters: the counters of the run.
            manifest: the manifest of the checkpoint.

        Returns:
            What counters.json has about them.

        Raises:
            OSError: it cannot be written.
        """
        replies = self._request_saving(Save(folder=manifest.folder, iterations=counters.iterations))
        for saved in replies.values():
            if saved.error:
                raise saved.error
            manifest.digests |= saved.digests
        first = replies.pop(0, None) or Saved(metadata=describe_all(training))
        for role, components in training.by_role.items():
            write_learner(manifest, role, components.learner, _to_tensors(first.learners.get(role, {})))
            for index, saved in replies.items():
                write_learner_state(manifest, role, _to_tensors(saved.learners[role]), make_prefix(index))
        others = {str(index): saved.metadata for index, saved in replies.items()}
        return {**first.metadata, **({"workers": others} if others else {})}

    def close(self) -> None:
        """End all workers; those that do not end in time are killed."""
        deadline = time.monotonic() + STOP_SECONDS
        for worker in self.workers:
            with suppress(OSError):
                worker.connection.send(Stop())
        self.pause()
        for worker in self.workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.connection.close()
            worker.process.close()
        self.workers = []
        self.memory.close()

    def _start(self, index: int, replacements: int) -> Worker:
        connection, own_end = multiprocessing.Pipe()
        process = self.spawn(index, replacements, own_end)
        own_end.close()
        return Worker(
            index=index,
            replacements=replacements,
            first_step=int(self.memory.counts[index, 0]),
            process=process,
            connection=connection,
        )

    def _build(self, worker: Worker, message: Start) -> None:
        """Let a worker build its components; then it waits."""
        with suppress(OSError):  # its end is noticed when its connection is read
            worker.connection.send(message)
        worker.state = WorkerState.WAITING

    def _receive_roles(self, worker: Worker) -> Mapping[str, Role]:
        """Return the roles of a worker. Raises what the worker raised, and EnvironmentStartError if it ended."""
        try:
            message = self._receive(worker)
        except (EOFError, OSError) as error:
            raise EnvironmentStartError(
                f"worker {worker.index} {_describe_end(worker)} before its environments were open; "
                'a program that calls train with runtime WORKERS needs `if __name__ == "__main__":`'
            ) from error
        assert isinstance(message, Ready), message
        return message.roles

    def _request_saving(self, message: Save) -> dict[int, Saved]:
        """Let all workers that wait save at the same time. Return the replies, by number of the worker."""
        saving = [worker for worker in self.workers if worker.state is WorkerState.WAITING]
        for worker in saving:
            with suppress(OSError):
                worker.connection.send(message)
        replies = {}
        for worker in saving:
            try:
                replies[worker.index] = self._receive(worker)
            except (EOFError, OSError):
                worker.state = WorkerState.RUNNING  # so that its connection is read, and its end is noticed
        return replies

    def _receive(self, worker: Worker) -> Any:
        """Return the next message of a worker that is no log record.

        Raises:
            EOFError, OSError: the worker has ended.
            Exception: the error that the worker has raised.
        """
        while isinstance(message := worker.connection.recv(), LogRecord):
            self._log(worker, message)
        if isinstance(message, Report):
            message.raise_error()
        return message

    def _log(self, worker: Worker, record: LogRecord) -> None:
        LOG.log(record.level, record.text if self.count == 1 else f"worker {worker.index}: {record.text}")


def _describe_end(worker: Worker) -> str:
    """Return how a worker ended, whose connection has ended; kill it if it has not."""
    worker.process.join(STOP_SECONDS)
    worker.process.kill()
    worker.process.join()
    assert worker.process.exitcode is not None
    return describe_exit(worker.process.exitcode)


def _to_tensors(state: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(value) for name, value in state.items()}
