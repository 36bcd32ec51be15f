"""The loop of a worker: ticks and updates, with a pause whenever the main process has something to do."""

from __future__ import annotations

from collections import defaultdict
from multiprocessing.connection import Connection
from pathlib import Path

from torch import Tensor

from algorithm.agents.agent import LossResult
from algorithm.checkpointing.checkpoint import make_prefix
from algorithm.checkpointing.manifest import Manifest
from algorithm.checkpointing.writer import write_experience
from algorithm.processes.messages import Continue, Report, Save, Saved
from algorithm.processes.shared_memory import SharedMemory
from algorithm.training.actor import Actor
from algorithm.training.components import TrainingComponents
from algorithm.training.progress import Counters
from algorithm.training.reporter import is_sampled
from algorithm.training.updates import run_tick


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
        """Make ticks until the main process ends the worker: `wait` then raises Stopped."""
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
        """Wait until the main process continues this worker, and save its experience on request.

        Raises:
            Stopped: the worker is to end.
        """
        while not isinstance(message := self.connection.recv(), Continue):
            if not isinstance(message, Save):
                raise Stopped
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


class Stopped(Exception):
    """The main process ends the worker."""
