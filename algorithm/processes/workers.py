"""The runtime with workers: processes that act and learn with their own environments, and share the parameters.

The main process lets them make ticks and updates until it has something to do. They share the memory of the learners
with it, and everything else passes between them as calls of a service.
"""

from __future__ import annotations

import signal
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import torch

from algorithm.adapters.adapter import EnvironmentStartError
from algorithm.adapters.curriculum import EnvironmentParameters
from algorithm.agents.agent import LossResult
from algorithm.checkpointing.checkpoint import (
    Checkpoint,
    describe_all,
    write_experience,
    write_learner,
)
from algorithm.checkpointing.manifest import Manifest
from algorithm.config.loader import Settings
from algorithm.config.registry import find_class
from algorithm.errors import UserError
from algorithm.parts.components_builder import ComponentsBuilder, Sharing
from algorithm.parts.make_env import Environments
from algorithm.parts.seeding import TRAINING, RunSeeds, seed_process
from algorithm.processes.fleet import Fleet, RemoteEnvironments, RemoteLanes, forbid_natural_steps
from algorithm.processes.host import Failure, ServiceSpec
from algorithm.processes.process_host import ProcessHost
from algorithm.processes.service import RunTask, Service, forbid_new_lanes, forbid_new_role, start_service
from algorithm.processes.shared_memory import SharedLearner, SharedMemory
from algorithm.processes.supervisor import Lost, Supervised, Supervisor
from algorithm.specs import Role
from algorithm.training.actor import Actor
from algorithm.training.components import DivergenceDetector, TrainingComponents
from algorithm.training.invalid_values import Episode
from algorithm.training.monitor import DISPLAY_INTERVAL, Monitor
from algorithm.training.progress import Counters
from algorithm.training.reporter import is_sampled
from algorithm.training.signals import DeferredSignals
from algorithm.training.timer import PHASES

STOP_SECONDS = 5.0  # seconds after which a worker that does not close its environments is killed
REPORT_SECONDS = 1.0  # seconds after which a worker reports, if no episode ends
SETTLE_SECONDS = 10.0  # seconds in which workers finish their tick when a run ends
WORKER_PHASES = ("environment", "acting", "learning")  # phases in which workers spend their time


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a worker has collected and learned since its last report.

    Attributes:
        episodes: episodes that ended.
        active_lanes: {role: [lanes] bool}, the lanes that had a row in this iteration.
        samples: {role: metrics of the sampled updates}.
    """

    episodes: Sequence[Episode]
    active_lanes: Mapping[str, np.ndarray]
    samples: Mapping[str, Sequence[Mapping[str, float]]]


# What a worker has written to a checkpoint: the digests of its files, what counters.json has about it, and of worker 0,
# which writes no file of it, by role the state of the learner that workers do not share.
Saved = tuple[Mapping[str, str], Mapping[str, Any], Mapping[str, Mapping[str, np.ndarray]]]


class WorkerService(Service):
    """A worker of a run, which learns from its own environments like a run in one process.

    Args:
        task: the data from which it starts.
        memory: the memory that the processes share.
        index: its number.
        replacements: the number of workers with this number that ended before it.
    """

    def __init__(self, task: RunTask, memory: SharedMemory, index: int, replacements: int):
        super().__init__(task, index, replacements)
        self.memory = memory
        self._seeds = RunSeeds(task.settings.base.seed, (index, replacements))
        self._samples: dict[str, list[dict[str, float]]] = defaultdict(list)  # by role, since the last report
        self._sampled: set[str] = set()  # the roles with samples since the last row of metrics
        self._rows = 0  # of metrics, at the last call
        self._is_intact = True  # whether no tick has raised an exception
        # The main process ends its workers. Programs that an environment starts do not inherit this handler.
        signal.signal(signal.SIGTERM, lambda *_: None)

    def open(self) -> Mapping[str, Role]:
        """Open the environments. Return their roles."""
        seed_process(self._seeds.process)
        self._folder = self.task.open_folder()
        environments = Environments(self.task.settings, self._folder)
        self._adapter = environments.open_training(EnvironmentParameters(self.task.settings.reset))
        return dict(self._adapter.roles)

    def build(self, counters: Counters, folder: Path | None) -> None:
        """Build the components, whose shared tensors exist now.

        Args:
            counters: the counters of the run.
            folder: the checkpoint that may have the experience of the worker; None: it starts with an empty replay.
        """
        settings, base, adapter = self.task.settings, self.task.settings.base, self._adapter
        checkpoint = Checkpoint(folder, self.index) if folder else None
        if checkpoint and not checkpoint.has_experience:
            checkpoint = None
        make_learner = partial(SharedLearner, memory=self.memory, lock=base.worker_lock)
        sharing = Sharing(make_learner=make_learner, is_main=False, worker=self.index, workers=base.n_workers)
        builder = ComponentsBuilder(settings, self._folder, checkpoint, lambda line: None, sharing, self._seeds)
        self._training = TrainingComponents(adapter, forbid_new_role, grow_components=forbid_new_lanes)
        for name, role in adapter.roles.items():
            self._training.by_role[name] = builder(name, role)
        seed = self._seeds.get_seed(TRAINING, counters.env_steps)
        self._actor = Actor(self._training, seed, counters.iterations)
        if checkpoint:
            checkpoint.restore_process(self._actor)
        self._first_update = counters.updates

    def run(self, iterations: int, rows: int) -> Report:
        """Make ticks until an episode ends, all workers have reached the limit of env steps, or it is time to report.

        After a tick that has raised an exception, there are no others.

        Args:
            iterations: completed iterations of the run; after each of them, no lane counts as active.
            rows: rows of metrics that were written; each of them starts new samples of metrics.
        """
        self._actor.set_iterations(iterations)
        if rows != self._rows:
            self._sampled.clear()
        self._rows = rows
        training, actor, memory = self._training, self._actor, self.memory
        training.timer.restart()
        end = time.monotonic() + REPORT_SECONDS
        while self._is_intact and memory.env_steps < memory.limit and not actor.episodes and time.monotonic() < end:
            self._is_intact = False
            actor.run_tick(self._record_update)
            self._is_intact = True
            memory.counts[self.index, 0] += actor.env_steps
            actor.env_steps = 0
            memory.seconds[self.index] = list(training.timer.seconds.values())
        report = Report(
            episodes=list(actor.episodes), active_lanes=dict(actor.active_lanes), samples=dict(self._samples)
        )
        actor.episodes.clear()
        self._samples.clear()
        return report

    def save(self, folder: Path, iterations: int) -> Saved:
        """Write the experience of the worker to the folder of a checkpoint; `iterations` as in `run`."""
        self._actor.set_iterations(iterations)
        manifest, learners = Manifest(folder), {}
        metadata = write_experience(self._training, self._actor, manifest, self.index)
        if self.index == 0:
            for role, components in self._training.by_role.items():
                state = components.learner.own_state()
                learners[role] = {name: value.numpy() for name, value in state.items()}
        return manifest.digests, metadata, learners

    def close(self) -> None:
        """Close the environments."""
        self._adapter.close()

    def _record_update(self, role: str, report: LossResult) -> None:
        self.memory.counts[self.index, 1] += 1
        if is_sampled(role in self._sampled, self._first_update + int(self.memory.counts[self.index, 1])):
            self._sampled.add(role)
            self._samples[role].append({name: value.item() for name, value in report.compute_metrics().items()})


class WorkersFleet(Fleet):
    """The workers of a run, which make ticks and updates, while the main process does what the monitor finds due.

    Before it does so, it lets every worker finish its tick. A single worker waits after each tick in which an episode
    ended, too, since the episode may reach the goal: a run with one worker thus equals a run of the local runtime.
    Several workers continue with a second call, which they have received already.
    """

    _host: ProcessHost | None = None

    @classmethod
    def check(cls, settings: Settings) -> None:
        base = settings.base
        forbid_natural_steps(settings, "runtime WORKERS")
        if find_spec("fcntl") is None:
            raise UserError("base_config.runtime WORKERS needs the file locks of Linux or macOS: use LOCAL")
        if base.device not in ("cpu", "auto"):
            raise UserError(
                f"base_config.device is {base.device}, but the workers of runtime WORKERS learn on the CPU: use cpu or "
                "auto"
            )
        if find_class("env_type", base.env_type).starts_programs:
            raise UserError(
                f"base_config.runtime WORKERS is not for env_type {base.env_type.upper()}, whose environments are "
                "separate processes already: use LOCAL, with more n_envs"
            )

    def open(self, evaluates: bool) -> None:
        base, self._memory = self.settings.base, SharedMemory(self.settings.base.n_workers)
        self._host = ProcessHost()
        task = RunTask.pack(self.settings, self.folder, self.counters.env_steps)
        self._supervisor = Supervisor(
            self._host,
            ServiceSpec(kind="Worker", make=partial(start_service, WorkerService, task), inherited=(self._memory,)),
            name="worker {}".format,
            max_replacements=base.max_env_restarts,
            max_failed_starts=1,
        )
        self._supervisor.ensure(base.n_workers)
        self._supervisor.wait_for_start()
        self.adapter = RemoteEnvironments(self._supervisor.opened)
        make_learner = partial(SharedLearner, memory=self._memory, lock=base.worker_lock)
        self.sharing = Sharing(make_learner=make_learner, is_main=True, has_environments=False, workers=base.n_workers)

    def start(self, training: TrainingComponents, checkpoint: Checkpoint | None) -> None:
        self.training, memory = training, self._memory
        for service in self._supervisor.services:
            self._supervisor.call(service, "build", self.counters, checkpoint.folder if checkpoint else None)
        replies = self._supervisor.gather(inf)
        self._ready: set[Supervised] = set()  # those that have built their components
        for service in self._supervisor.services:
            if isinstance(reply := replies[service.index], Lost):
                raise EnvironmentStartError(f"worker {service.index} {reply.reason} before the run started")
            self._handle(service, reply)
        # Env steps and updates, and seconds of each worker that were counted; env steps when its process was started.
        self._counted, self._seconds = np.zeros_like(memory.counts), np.zeros_like(memory.seconds)
        self._first_steps = np.zeros(len(memory.counts), np.int64)
        self._lanes = RemoteLanes(len(memory.counts), self._supervisor.opened)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore nothing: each worker restores its own process."""

    def save(self, manifest: Manifest) -> dict[str, Any]:
        """Write the learners, and let the workers write their experience, except those that have ended."""
        workers = self._list_ready()
        for service in workers:
            self._supervisor.call(service, "save", manifest.folder, self.counters.iterations)
        saved: dict[int, Saved] = {}
        for index, reply in self._supervisor.gather(inf, workers).items():
            if isinstance(reply, Failure):
                reply.raise_error()
            if not isinstance(reply, Lost):  # the next call of a worker that is lost replaces it
                saved[index] = reply
                manifest.digests |= reply[0]
        _, metadata, learners = saved.pop(0) if 0 in saved else ({}, describe_all(self.training), {})
        for role, components in self.training.by_role.items():
            state = {name: torch.from_numpy(value) for name, value in learners.get(role, {}).items()}
            write_learner(manifest, role, components.learner, state)
        others = {str(index): about for index, (_, about, _) in saved.items()}
        return {**metadata, **({"workers": others} if others else {})}

    def begin(self, monitor: Monitor, divergence: DivergenceDetector) -> Callable[[DeferredSignals], bool]:
        self._monitor, self._divergence = monitor, divergence
        return self._advance

    def settle(self) -> None:
        """Let the workers finish their ticks; those that do not are ended."""
        self._memory.limit = 0
        workers = self._list_ready()
        deadline = time.monotonic() + SETTLE_SECONDS
        while self._is_running and (left := deadline - time.monotonic()) > 0:
            for service, reply in self._supervisor.poll(left, workers):
                if isinstance(reply, Report):
                    self._count(service, reply)
                elif isinstance(reply, Lost):
                    self._supervisor.end(service)
        for service in [each for each in self._list_ready() if each.calls]:
            self._supervisor.end(service)
        self._count_steps()
        self._fetch()

    def close(self) -> None:
        if self._host is None:
            return
        for service in self._supervisor.services:
            self._supervisor.call(service, "close")
        self._supervisor.gather(STOP_SECONDS)
        self._host.close()
        self._memory.close()

    def _advance(self, signals: DeferredSignals) -> bool:
        self._resume()
        self._receive()
        if self._monitor.is_due or signals.is_pending:
            self._memory.limit = 0  # each worker replies after its tick
            while self._is_running:
                self._receive()
            self._fetch()
            return self._monitor.do_due()
        self._monitor.show_progress()
        return False

    def _list_ready(self) -> list[Supervised]:
        return [each for each in self._supervisor.services if each in self._ready]

    @property
    def _is_running(self) -> bool:
        """Return whether a worker that has built its components has a call."""
        return any(each.calls for each in self._list_ready())

    def _resume(self) -> None:
        """Let the workers run until something is due."""
        counters = self._monitor.counters
        self._count_steps()
        left = self._monitor.next_due - counters.env_steps
        self._memory.limit = int(min(int(self._counted[:, 0].sum()) + left, 2**62))
        in_flight = min(len(self._memory.counts), 2)
        for service in self._list_ready():
            while len(service.calls) < in_flight:
                self._supervisor.call(service, "run", counters.iterations, self._monitor.reporter.rows)

    def _receive(self) -> None:
        """Wait for the replies of workers, and handle them."""
        for service, reply in self._supervisor.poll(DISPLAY_INTERVAL):
            self._handle(service, reply)
        self._count_steps()
        self._divergence.check()

    def _handle(self, service: Supervised, reply: Any) -> None:
        """Count a report, or replace a worker that was lost. Raise the error of a worker."""
        if isinstance(reply, Report):
            self._count(service, reply)
        elif isinstance(reply, Failure):
            reply.raise_error()
        elif isinstance(reply, Lost):
            self._ready.discard(service)
            steps = self._memory.counts[service.index, 0]
            service.has_result = bool(steps > self._first_steps[service.index])
            self._first_steps[service.index] = steps
            self._supervisor.replace(service, reply.reason, "another worker with an empty replay replaces it")
            self._supervisor.call(service, "build", self.counters, None)
        else:  # it has built its components
            self._ready.add(service)

    def _fetch(self) -> None:
        """Take the parameters of the workers."""
        for components in self.training.by_role.values():
            assert isinstance(components.learner, SharedLearner)
            components.learner.fetch()

    def _count(self, service: Supervised, report: Report) -> None:
        """Count the episodes of a report."""
        for role, samples in report.samples.items():
            self._monitor.reporter.add_samples(role, samples)
        self._count_steps()
        self._lanes.count_episodes(self._monitor, service.index, report.episodes, report.active_lanes)

    def _count_steps(self) -> None:
        """Count the env steps, the updates and the seconds of all workers since the last call."""
        counts, seconds = self._memory.counts.copy(), self._memory.seconds.copy()
        env_steps, updates = (counts - self._counted).sum(0)
        self._monitor.count_steps(int(env_steps))
        self._monitor.counters.updates += int(updates)
        spent = np.maximum(seconds - self._seconds, 0).sum(0)
        self._counted, self._seconds = counts, seconds
        self.training.timer.split_lap({phase: float(spent[PHASES.index(phase)]) for phase in WORKER_PHASES})
