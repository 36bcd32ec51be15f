"""The runtime with workers: processes that act and learn with their own environments, and share the parameters."""

from __future__ import annotations

import logging
import multiprocessing
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from importlib.util import find_spec
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch

from algorithm.adapters.adapter import EnvironmentCrashed, EnvironmentStartError
from algorithm.adapters.process_setup import PROCESSES
from algorithm.checkpointing.checkpoint import Checkpoint, make_prefix
from algorithm.checkpointing.manifest import Manifest
from algorithm.checkpointing.writer import describe_all, write_learner, write_learner_state
from algorithm.config.loader import Settings
from algorithm.config.registry import find_class
from algorithm.errors import UserError, describe_exit
from algorithm.parts.components_builder import Sharing
from algorithm.parts.run_folder import RunFolder
from algorithm.processes.fleet import Fleet, RemoteEnvironments, RemoteLanes
from algorithm.processes.service import LogRecord, pickle_make_env
from algorithm.processes.shared_memory import SharedLearner, SharedMemory
from algorithm.processes.worker import Continue, Ready, Report, Save, Saved, Start, WorkerTask, run_worker
from algorithm.specs import Role
from algorithm.training.components import PHASES, TrainingComponents
from algorithm.training.monitor import DISPLAY_INTERVAL, Monitor
from algorithm.training.progress import Counters
from algorithm.training.run_end import DivergenceDetector
from algorithm.training.signals import DeferredSignals

LOG = logging.getLogger(__name__)
STOP_SECONDS = 5.0  # seconds after which a worker that does not end is killed
SETTLE_SECONDS = 10.0  # seconds in which workers finish their tick when a run ends
WORKER_PHASES = ("environment", "acting", "learning")  # phases in which workers spend their time


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


class Workers:
    """The worker processes of a run: start, pause, save, replace, stop.

    Args:
        settings: the settings of the run.
        folder: the run folder.
        memory: the memory that the processes share.

    Attributes:
        roles: the roles of the environments, the same in all workers.
    """

    def __init__(self, settings: Settings, folder: RunFolder, memory: SharedMemory):
        self.settings, self.folder, self.memory = settings, folder, memory
        self.count, self.max_replacements = settings.base.n_workers, settings.base.max_env_restarts
        self.roles: Mapping[str, Role] = {}
        self.workers: list[Worker] = []

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
            worker.connection.close()
        self.pause()
        for worker in self.workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            worker.process.kill()
            worker.process.join()
            worker.process.close()
        self.workers = []
        self.memory.close()

    def _start(self, index: int, replacements: int) -> Worker:
        connection, own_end = multiprocessing.Pipe()
        task = WorkerTask(
            settings=self.settings,
            folder=(self.folder.path, self.folder.nn_from),
            make_env=pickle_make_env(self.folder),
            memory=self.memory,
            index=index,
            replacements=replacements,
        )
        process = PROCESSES.Process(target=run_worker, args=(task, own_end), name=f"worker-{index}")
        process.start()
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
        if isinstance(message, Report) and message.failure:
            message.failure.raise_error()
        return message

    def _log(self, worker: Worker, record: LogRecord) -> None:
        LOG.log(record.level, record.text if self.count == 1 else f"worker {worker.index}: {record.text}")


class WorkersFleet(Fleet):
    """The workers of a run, which make ticks and updates, while the main process does what the monitor finds due.

    Before it does so, it lets every worker finish its tick and wait. With one worker, a run thus equals a run of the
    local runtime.
    """

    @classmethod
    def check(cls, settings: Settings) -> None:
        check_workers(settings)

    def open(self, evaluates: bool) -> None:
        base, memory = self.settings.base, SharedMemory(self.settings.base.n_workers)
        self._workers = Workers(self.settings, self.folder, memory)
        self._workers.open()
        self.adapter = RemoteEnvironments(self._workers.roles)
        make_learner = partial(SharedLearner, memory=memory, lock=base.worker_lock)
        self.sharing = Sharing(make_learner=make_learner, is_main=True, has_environments=False, workers=base.n_workers)

    def start(self, training: TrainingComponents, checkpoint: Checkpoint | None) -> None:
        self.training, workers = training, self._workers
        workers.start(self.counters, checkpoint.folder if checkpoint else None)
        self._counted = np.zeros((workers.count, 2), np.int64)  # env steps and updates of each worker that were counted
        self._seconds = np.zeros((workers.count, len(PHASES)))  # seconds of each worker that were counted
        self._lanes = RemoteLanes(workers.count, workers.roles)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore nothing: each worker restores its own process."""

    def save(self, manifest: Manifest) -> dict[str, Any]:
        return self._workers.save(self.training, self.counters, manifest)

    def begin(self, monitor: Monitor, divergence: DivergenceDetector) -> Callable[[DeferredSignals], bool]:
        self._monitor, self._divergence = monitor, divergence
        return self._advance

    def _advance(self, signals: DeferredSignals) -> bool:
        self._resume()
        self._receive()
        if self._monitor.is_due or signals.is_pending:
            self._gather()
            return self._monitor.do_due()
        self._monitor.show_progress()
        return False

    def close(self) -> None:
        if hasattr(self, "_workers"):
            self._workers.close()

    def _resume(self) -> None:
        """Continue the workers that wait, until something is due."""
        counters = self._monitor.counters
        message = Continue(iterations=counters.iterations, rows=self._monitor.reporter.rows)
        self._count_steps()
        left = self._monitor.next_due - counters.env_steps
        self._workers.resume(message, int(self._counted[:, 0].sum()) + left)

    def _receive(self) -> None:
        """Wait for reports, and count them. Replace the workers that have ended. Raise the error of a worker."""
        for worker, report in self._workers.receive(DISPLAY_INTERVAL, self.counters):
            if report is None:
                self._workers.replace(worker)
            else:
                self._count(worker, report)
        self._count_steps()
        self._divergence.check()

    def _gather(self) -> None:
        """Wait until all workers wait, and take their parameters."""
        self._workers.pause()
        while self._workers.is_running:
            self._receive()
        self._fetch()

    def settle(self) -> None:
        """Let the workers finish their ticks; those that do not are ended."""
        workers = self._workers
        workers.pause()
        deadline = time.monotonic() + SETTLE_SECONDS
        while workers.is_running and (left := deadline - time.monotonic()) > 0:
            for worker, report in workers.receive(left, self.counters):
                if report is None:
                    workers.drop(worker)
                elif not report.failure:
                    self._count(worker, report)
        for worker in [worker for worker in workers.workers if worker.state is WorkerState.RUNNING]:
            workers.drop(worker)
        self._count_steps()
        self._fetch()

    def _fetch(self) -> None:
        """Take the parameters of the workers."""
        for components in self.training.by_role.values():
            assert isinstance(components.learner, SharedLearner)
            components.learner.fetch()

    def _count(self, worker: Worker, report: Report) -> None:
        """Count the episodes of a report. Raise the error of its worker."""
        for role, samples in report.samples.items():
            self._monitor.reporter.add_samples(role, samples)
        self._count_steps()
        if report.failure:
            report.failure.raise_error()
        self._lanes.count_episodes(self._monitor, worker.index, report.episodes, report.active_lanes)

    def _count_steps(self) -> None:
        """Count the env steps, the updates and the seconds of all workers since the last call."""
        memory = self._workers.memory
        counts, seconds = memory.counts.copy(), memory.seconds.copy()
        env_steps, updates = (counts - self._counted).sum(0)
        self._monitor.count_steps(int(env_steps))
        self._monitor.counters.updates += int(updates)
        spent = np.maximum(seconds - self._seconds, 0).sum(0)
        self._counted, self._seconds = counts, seconds
        self.training.timer.split_lap({phase: float(spent[PHASES.index(phase)]) for phase in WORKER_PHASES})


def check_workers(settings: Settings) -> None:
    """Raise UserError for settings that workers do not support."""
    base = settings.base
    for each in (settings, *settings.roles.values()):
        if getattr(each.agent, "trust_region", None) == "full":
            raise UserError(f"{each.agent_section}.trust_region full is not for runtime WORKERS: use efficient or off")
    if find_spec("fcntl") is None:
        raise UserError("base_config.runtime WORKERS needs the file locks of Linux or macOS: use LOCAL")
    if base.device not in ("cpu", "auto"):
        raise UserError(
            f"base_config.device is {base.device}, but the workers of runtime WORKERS learn on the CPU: use cpu or auto"
        )
    if find_class("env_type", base.env_type).starts_programs:
        raise UserError(
            f"base_config.runtime WORKERS is not for env_type {base.env_type.upper()}, whose environments are separate "
            "processes already: use LOCAL, with more n_envs"
        )


def _describe_end(worker: Worker) -> str:
    """Return how a worker ended, whose connection has ended; kill it if it has not."""
    worker.process.join(STOP_SECONDS)
    worker.process.kill()
    worker.process.join()
    assert worker.process.exitcode is not None
    return describe_exit(worker.process.exitcode)


def _to_tensors(state: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(value) for name, value in state.items()}
