"""A worker process of a run: it opens its own environments, and learns like a run in one process.

It makes ticks and updates, and pauses whenever the main process has something to do.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from algorithm.adapters.curriculum import EnvironmentParameters
from algorithm.adapters.process_setup import end_with_parent, prepare_worker
from algorithm.agents.agent import LossResult
from algorithm.checkpointing.checkpoint import Checkpoint, make_prefix
from algorithm.checkpointing.manifest import Manifest
from algorithm.checkpointing.writer import write_experience
from algorithm.config.loader import Settings
from algorithm.parts.components_builder import ComponentsBuilder, Sharing
from algorithm.parts.make_env import Environments
from algorithm.parts.run_folder import RunFolder
from algorithm.parts.seeding import RunSeeds, seed_process
from algorithm.parts.torch_setup import configure_torch
from algorithm.processes.service import Failure, LogRecord, forbid_new_lanes, forbid_new_role, forward_log
from algorithm.processes.shared_memory import SharedLearner, SharedMemory
from algorithm.specs import Role
from algorithm.training.actor import Actor
from algorithm.training.components import TrainingComponents
from algorithm.training.invalid_values import Episode
from algorithm.training.progress import Counters
from algorithm.training.reporter import is_sampled
from algorithm.training.updates import run_tick

# Exceptions that a closed connection raises; the worker then closes its environments, and ends.
MAIN_PROCESS_ENDED = (EOFError, BrokenPipeError, ConnectionResetError)


@dataclass(frozen=True, kw_only=True)
class Start:
    """To a worker that is ready: build the components, whose shared tensors exist now.

    Attributes:
        counters: counters of the run.
        checkpoint: folder of the checkpoint with the worker's experience; None: it starts with an empty replay.
    """

    counters: Counters
    checkpoint: Path | None


@dataclass(frozen=True, kw_only=True)
class Continue:
    """To a worker that waits: make ticks until the next report.

    Attributes:
        iterations: completed iterations of the run; after each of them, no lane counts as active.
        rows: rows of metrics that were written; each of them starts new samples of metrics.
    """

    iterations: int
    rows: int


@dataclass(frozen=True, kw_only=True)
class Save:
    """To a worker that waits: write its experience to the folder of a checkpoint.

    Attributes:
        folder: the folder.
        iterations: as in Continue.
    """

    folder: Path
    iterations: int


@dataclass(frozen=True)
class Ready:
    """From a worker whose environments are open: their roles."""

    roles: Mapping[str, Role]


@dataclass(frozen=True, kw_only=True)
class Report:
    """From a worker: what it has collected and learned since its last report.

    Attributes:
        waits: whether the worker waits for a reply.
        episodes: episodes that ended.
        active_lanes: {role: [lanes] bool}, the lanes that had a row in this iteration.
        samples: {role: metrics of the sampled updates}.
        failure: the exception that has ended the worker's training.
    """

    waits: bool = True
    episodes: Sequence[Episode] = ()
    active_lanes: Mapping[str, np.ndarray] = field(default_factory=dict)
    samples: Mapping[str, Sequence[Mapping[str, float]]] = field(default_factory=dict)
    failure: Failure | None = None


@dataclass(frozen=True, kw_only=True)
class Saved:
    """From a worker: what it has written to a checkpoint.

    Attributes:
        digests: digests of its files.
        metadata: what counters.json has about it.
        learners: {role: the state of the learner that workers do not share}.
        error: error of the disk, if there was one.
    """

    digests: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    learners: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)
    error: OSError | None = None


@dataclass(frozen=True, kw_only=True)
class WorkerTask:
    """What a worker process needs to start.

    Attributes:
        settings: settings of the run.
        folder: path of the run folder, and of the folder of the network's file.
        make_env: function that opens the environment instead of base_config.env_name, pickled; None without one.
        memory: the memory that the processes share.
        index: number of the worker.
        replacements: number of workers with this number that ended before it.
    """

    settings: Settings
    folder: tuple[Path, Path]
    make_env: bytes | None
    memory: SharedMemory
    index: int
    replacements: int


def run_worker(task: WorkerTask, connection: Connection) -> None:
    """Train in this process until the main process ends it, or has ended."""
    prepare_worker()
    # The main process ends its workers. Programs that an environment starts do not inherit this handler.
    signal.signal(signal.SIGTERM, lambda *_: None)
    end_with_parent()
    try:
        forward_log(partial(_send_record, connection))
        train_worker(task, connection)
    except MAIN_PROCESS_ENDED:
        pass
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def train_worker(task: WorkerTask, connection: Connection) -> None:
    """Open the environments, build the components, and make ticks. An exception is sent to the main process."""
    with ExitStack() as stack:
        loop = None
        try:
            loop = _build(task, connection, stack)
            loop.run()
        except MAIN_PROCESS_ENDED:
            raise
        except BaseException as error:  # of the environment, or of a user's network
            connection.send(Report(failure=Failure.describe(error)))
            while loop:  # the main process saves the experience, and ends the worker
                loop.wait()


def _build(task: WorkerTask, connection: Connection, stack: ExitStack) -> WorkerLoop:
    settings, seeds = task.settings, RunSeeds(task.settings.base.seed, (task.index, task.replacements))
    folder = RunFolder(*task.folder)
    folder.make_env = pickle.loads(task.make_env) if task.make_env else None
    configure_torch()
    seed_process(seeds.process)
    environments = Environments(settings, folder)
    adapter = stack.enter_context(closing(environments.open_training(EnvironmentParameters(settings.reset))))
    connection.send(Ready(dict(adapter.roles)))
    start: Start = connection.recv()
    checkpoint = Checkpoint(start.checkpoint, task.index) if start.checkpoint else None
    if checkpoint and not checkpoint.has_experience:
        checkpoint = None
    make_learner = partial(SharedLearner, memory=task.memory, lock=settings.base.worker_lock)
    workers = settings.base.n_workers
    sharing = Sharing(make_learner=make_learner, is_main=False, worker=task.index, workers=workers)
    builder = ComponentsBuilder(settings, folder, checkpoint, lambda line: None, sharing, seeds)
    training = TrainingComponents(adapter, forbid_new_role, grow_components=forbid_new_lanes)
    for name, role in adapter.roles.items():
        training.by_role[name] = builder(name, role)
    actor = Actor(training, seeds.get_training_seed(start.counters.env_steps))
    if checkpoint:
        checkpoint.restore_process(actor)
    return WorkerLoop(connection, training, actor, task.memory, task.index, start.counters)


def _send_record(connection: Connection, record: LogRecord) -> None:
    with suppress(OSError):
        connection.send(record)


class WorkerLoop:
    """A loop that makes ticks until the main process ends it.

    When the env steps of all workers have reached the limit that the main process set, the worker sends a report and
    waits for the reply. It also sends a report after a tick in which an episode ended. A single worker waits then, too,
    since the episode may reach the goal: it makes no tick that the local runtime would not make.

    Args:
        connection: the connection to the main process.
        training: the components of the worker.
        actor: its actor.
        memory: the shared memory.
        worker: its number.
        counters: the counters of the run when the worker was started.
    """

    def __init__(
        self,
        connection: Connection,
        training: TrainingComponents,
        actor: Actor,
        memory: SharedMemory,
        worker: int,
        counters: Counters,
    ):
        self.connection, self.training, self.actor = connection, training, actor
        self.memory, self.worker = memory, worker
        self._first_update = counters.updates
        self._samples: dict[str, list[dict[str, Tensor]]] = defaultdict(list)  # of updates since the last row
        self._reported_samples: dict[str, int] = {}  # by role: the number of samples that were reported
        self._iterations, self._rows = counters.iterations, 0  # of the last message

    def run(self) -> None:
        """Make ticks until the main process closes the connection, which raises one of `MAIN_PROCESS_ENDED`."""
        self.wait()
        while True:
            run_tick(self.training, self.actor, self._record_update)
            self.memory.counts[self.worker, 0] += self.actor.env_steps
            self.actor.env_steps = 0
            self.memory.seconds[self.worker] = list(self.training.timer.seconds.values())
            has_reached_limit = self.memory.env_steps >= self.memory.limit
            if self.actor.episodes or has_reached_limit:
                waits = has_reached_limit or len(self.memory.counts) == 1
                self._report(waits)
                if waits:
                    self.wait()

    def wait(self) -> None:
        """Wait until the main process continues this worker, and save its experience on request."""
        while not isinstance(message := self.connection.recv(), Continue):
            self._end_iteration(message.iterations)
            self.connection.send(self._save(message.folder))
        self._end_iteration(message.iterations)
        if message.rows != self._rows:
            self._samples.clear()
            self._reported_samples.clear()
        self._rows = message.rows
        self.training.timer.restart()

    def _end_iteration(self, iterations: int) -> None:
        """Count no lane as active, if another iteration of the run is complete."""
        if iterations != self._iterations:
            for lanes in self.actor.active_lanes.values():
                lanes[:] = False
        self._iterations = iterations

    def _record_update(self, role: str, report: LossResult) -> None:
        self.memory.counts[self.worker, 1] += 1
        if is_sampled(self._samples[role], self._first_update + int(self.memory.counts[self.worker, 1])):
            self._samples[role].append(report.compute_metrics())

    def _report(self, waits: bool) -> None:
        samples = {role: found[self._reported_samples.get(role, 0) :] for role, found in self._samples.items()}
        self.connection.send(
            Report(
                waits=waits,
                episodes=list(self.actor.episodes),
                active_lanes=dict(self.actor.active_lanes),
                samples={
                    role: [{name: value.item() for name, value in metrics.items()} for metrics in found]
                    for role, found in samples.items()
                },
            )
        )
        self.actor.episodes.clear()
        self._reported_samples = {role: len(found) for role, found in self._samples.items()}

    def _save(self, folder: Path) -> Saved:
        manifest = Manifest(folder)
        try:
            metadata = write_experience(self.training, self.actor, manifest, make_prefix(self.worker))
        except OSError as error:
            return Saved(error=error)
        learners = {
            role: {name: value.numpy() for name, value in components.learner.own_state().items()}
            for role, components in self.training.by_role.items()
        }
        return Saved(digests=manifest.digests, metadata=metadata, learners=learners)
