"""The runtime with workers: processes that act and learn with their own environments, and share the parameters."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from algorithm.adapters.adapter import Adapter
from algorithm.processes.messages import Continue, Report
from algorithm.processes.shared_learner import SharedLearner
from algorithm.processes.worker_group import Worker, WorkerGroup, WorkerState
from algorithm.rollout import Step
from algorithm.specs import Role
from algorithm.training.components import PHASES, TrainingComponents
from algorithm.training.monitor import DISPLAY_INTERVAL, Monitor
from algorithm.training.run_end import DivergenceDetector, finish_at_end

SETTLE_SECONDS = 10.0  # seconds in which workers finish their tick when a run ends
WORKER_PHASES = ("environment", "acting", "learning")  # phases in which workers spend their time


class WorkersRuntime:
    """A runtime whose workers make ticks and updates, while the main process does what the monitor finds due.

    Before it does so, it lets every worker finish its tick and wait. With one worker, a run thus equals a run of the
    local runtime.
    """

    def run(
        self, training: TrainingComponents, actor: WorkerGroup, monitor: Monitor, divergence: DivergenceDetector
    ) -> None:
        """Train until the run is over. The monitor saves a final checkpoint, unless the run diverged.

        Raises:
            Diverged: too many successive updates were skipped.
            KeyboardInterrupt, Terminated: a signal has ended the run.
            Exception: a worker has raised it.
        """
        session = _Session(training, actor, monitor, divergence)
        with finish_at_end(monitor, session.settle) as signals:
            is_over = monitor.do_due()  # a run that was stopped while its last weights were evaluated has ended
            while not is_over:
                session.resume()
                session.receive()
                if monitor.is_due or signals.is_pending:
                    session.gather()
                    is_over = monitor.do_due()
                    signals.raise_pending()
                else:
                    monitor.show_progress()
            divergence.check()


class RemoteEnvironments(Adapter):
    """Environments in other processes, of which the main process has the roles only."""

    def __init__(self, roles: Mapping[str, Role]):
        self.roles = roles

    def reset(self, seed: int) -> dict[str, Step]:
        raise NotImplementedError("only other processes reset their environments")

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, Step]:
        raise NotImplementedError("only other processes step their environments")

    def close(self) -> None:
        """Do nothing: each process closes its environments."""


class _Session:
    """The state of a run with workers in the main process."""

    def __init__(
        self, training: TrainingComponents, group: WorkerGroup, monitor: Monitor, divergence: DivergenceDetector
    ):
        self.training, self.group, self.monitor, self.divergence = training, group, monitor, divergence
        self._counted = np.zeros((group.count, 2), np.int64)  # env steps and updates of each worker that were counted
        self._seconds = np.zeros((group.count, len(PHASES)))  # seconds of each worker that were counted
        self._active = {role: np.zeros(group.count * spec.lanes, bool) for role, spec in group.roles.items()}

    def resume(self) -> None:
        """Continue the workers that wait, until something is due."""
        history, reporter = self.monitor.history, self.monitor.reporter
        message = Continue(iterations=history.counters.iterations, rows=reporter.rows)
        self._count_steps()
        left = self.monitor.next_due - history.counters.env_steps
        self.group.resume(message, int(self._counted[:, 0].sum()) + left)

    def receive(self) -> None:
        """Wait for reports, and count them. Replace the workers that have ended. Raise the error of a worker."""
        for worker, report in self.group.receive(DISPLAY_INTERVAL, self.monitor.counters):
            if report is None:
                self.group.replace(worker)
            else:
                self._count(worker, report)
        self._count_steps()
        self.divergence.check()

    def gather(self) -> None:
        """Wait until all workers wait, and take their parameters."""
        self.group.pause()
        while self.group.is_running:
            self.receive()
        self._fetch()

    def settle(self) -> None:
        """Let the workers finish their ticks before the final checkpoint; those that do not are ended."""
        self.group.pause()
        deadline = time.monotonic() + SETTLE_SECONDS
        while self.group.is_running and (left := deadline - time.monotonic()) > 0:
            for worker, report in self.group.receive(left, self.monitor.counters):
                if report is None:
                    self.group.drop(worker)
                elif not report.error:
                    self._count(worker, report)
        for worker in [worker for worker in self.group.workers if worker.state is WorkerState.RUNNING]:
            self.group.drop(worker)
        self._count_steps()
        self._fetch()

    def _fetch(self) -> None:
        """Take the parameters of the workers."""
        for components in self.training.by_role.values():
            assert isinstance(components.learner, SharedLearner)
            components.learner.fetch()

    def _count(self, worker: Worker, report: Report) -> None:
        for role, samples in report.samples.items():
            self.monitor.reporter.add_samples(role, samples)
        self._count_steps()
        report.raise_error()
        first_lanes = {role: worker.index * len(active) for role, active in report.active_lanes.items()}
        for role, active in report.active_lanes.items():
            self._active[role][first_lanes[role] :][: len(active)] = active
        if report.episodes:
            episodes = [replace(episode, lane=first_lanes[episode.role] + episode.lane) for episode in report.episodes]
            self.monitor.count_episodes(episodes, self._active)

    def _count_steps(self) -> None:
        """Count the env steps, the updates and the seconds of all workers since the last call."""
        counts, seconds = self.group.memory.counts.copy(), self.group.memory.seconds.copy()
        env_steps, updates = (counts - self._counted).sum(0)
        self.monitor.count_steps(int(env_steps))
        self.monitor.counters.updates += int(updates)
        spent = np.maximum(seconds - self._seconds, 0).sum(0)
        self._counted, self._seconds = counts, seconds
        self.training.timer.split_lap({phase: float(spent[PHASES.index(phase)]) for phase in WORKER_PHASES})
