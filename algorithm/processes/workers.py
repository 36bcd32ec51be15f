"""The runtime with workers: processes that act and learn with their own environments, and share the parameters.

The main process lets them make ticks and updates until it has something to do. They share the memory of the learners
with it, with a lock that the system releases when its holder ends; everything else passes as calls of a service.
"""

from __future__ import annotations

import mmap
import os
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from math import inf
from multiprocessing import reduction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from algorithm.adapters.adapter import EnvironmentStartError
from algorithm.adapters.curriculum import EnvironmentParameters
from algorithm.agents.agent import LossResult
from algorithm.checkpointing.checkpoint import (
    Checkpoint,
    Manifest,
    describe_all,
    write_experience,
    write_learner,
    write_weights,
)
from algorithm.config.loader import Settings
from algorithm.config.registry import find_class
from algorithm.errors import UserError
from algorithm.parts.components_builder import ComponentsBuilder, Sharing
from algorithm.parts.make_env import Environments
from algorithm.parts.seeding import TRAINING, RunSeeds
from algorithm.processes.fleet import Fleet, RemoteEnvironments, RemoteLanes, forbid_natural_steps
from algorithm.processes.host import Failure, ProcessHost, ServiceLost, ServiceSpec
from algorithm.processes.services import RunTask, Service, make_fixed_training, start_service
from algorithm.processes.supervisor import Supervised, Supervisor
from algorithm.rollout import Rollout
from algorithm.specs import Role
from algorithm.training.actor import Actor
from algorithm.training.components import TrainingComponents
from algorithm.training.invalid_values import Episode
from algorithm.training.learner import Learner
from algorithm.training.monitor import DISPLAY_INTERVAL
from algorithm.training.progress import Counters
from algorithm.training.reporter import is_sampled
from algorithm.training.signals import DeferredSignals
from algorithm.training.timer import Timer

try:
    import fcntl
except ImportError:  # a system without it has no workers
    fcntl = None  # type: ignore[assignment]

PAGE = mmap.ALLOCATIONGRANULARITY
STOP_SECONDS = 5.0  # seconds after which a worker that does not close its environments is killed
REPORT_SECONDS = 1.0  # seconds after which a worker reports, if no episode ends
SETTLE_SECONDS = 10.0  # seconds in which workers finish their tick when a run ends


class SharedMemory:
    """Memory of several processes, in a file without a name, which the system deletes with the last process.

    All processes place their tensors in the same order, with the same sizes. The first process to place a tensor is the
    one that created the memory; the tensor keeps its values. Each tensor has a shadow of the same size. `change` copies
    all tensors to their shadows before it changes them: if the process is killed within the block, the next holder of
    the lock restores the tensors.

    Args:
        workers: the number of workers.
        descriptor: the descriptor of the file of another process; None: the memory is created.

    Attributes:
        counts: [workers, 2] env steps and updates that each worker has made since the memory was created.
        limit: [1] the sum of these env steps at which every worker pauses after its tick.
    """

    def __init__(self, workers: int, descriptor: Any = None):
        self._creates = descriptor is None
        if descriptor:
            self._descriptor: int = descriptor.detach()
        elif hasattr(os, "memfd_create"):
            self._descriptor = os.memfd_create("samara")
        else:
            with tempfile.TemporaryFile() as file:
                self._descriptor = os.dup(file.fileno())
        self._end = 0
        self._tensors: list[tuple[Tensor, Tensor]] = []
        self._is_changing = self._map(torch.zeros(1, dtype=torch.bool))  # whether the tensors are half changed
        self.limit: np.ndarray = self._map(torch.zeros(1, dtype=torch.int64)).numpy()
        self.counts: np.ndarray = self._map(torch.zeros(workers, 2, dtype=torch.int64)).numpy()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pass the descriptor of the file to a spawned process."""
        return SharedMemory, (len(self.counts), reduction.DupFd(self._descriptor))

    def place(self, tensor: Tensor) -> Tensor:
        """Return the next shared tensor, which has the shape and dtype of `tensor`; a new one has its values."""
        if not tensor.numel():
            return tensor
        shared, shadow = self._map(tensor), self._map(tensor)
        self._tensors.append((shared, shadow))
        return shared

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock within the block. A change that its holder did not complete is undone before."""
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        try:
            if self._is_changing:
                for shared, shadow in self._tensors:
                    shared.copy_(shadow)
                self._is_changing.fill_(False)
            yield
        finally:
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    @contextmanager
    def change(self) -> Iterator[None]:
        """Hold the lock within the block, which may change the tensors and takes effect as a whole or not at all."""
        with self.lock():
            for shared, shadow in self._tensors:
                shadow.copy_(shared)
            self._is_changing.fill_(True)
            yield
            self._is_changing.fill_(False)

    def close(self) -> None:
        """Close the file. Its memory is freed with the last process and tensor that use it."""
        os.close(self._descriptor)

    def _map(self, tensor: Tensor) -> Tensor:
        """Return the tensor at the end of the file, which is extended by it if this process created the file."""
        start, size = self._end, -(-tensor.numel() * tensor.element_size() // PAGE) * PAGE
        self._end += size
        if self._creates:
            os.ftruncate(self._descriptor, self._end)
        buffer = mmap.mmap(self._descriptor, size, offset=start)
        shared = torch.frombuffer(buffer, dtype=tensor.dtype, count=tensor.numel()).view(tensor.shape)
        if self._creates:
            shared.copy_(tensor)
        return shared


class SharedLearner(Learner):
    """A learner of one of several processes (A3C; Mnih et al. 2016, Algorithm S3).

    Gradients are computed with the copy of the parameters that this process also acts with. `apply_gradients` steps the
    shared parameters, with the shared moments, and then copies them. `observe` merges a rollout into the shared
    statistics.

    Args:
        arguments: the positional arguments of Learner, without `place`.
        memory: the shared memory.
        lock: `base_config.worker_lock`.
    """

    def __init__(self, *arguments: Any, memory: SharedMemory, lock: str):
        super().__init__(*arguments, place=memory.place)  # type: ignore[misc]
        self._memory, self._lock = memory, lock
        self.synchronize()

    def synchronize(self) -> None:
        """Copy the shared parameters and statistics to the networks of this process."""
        with self._guard_copy():
            self.parameters.fetch()

    def observe(self, rollout: Rollout) -> None:
        with self._memory.change() if self._lock == "full" else self._guard_copy():
            self.parameters.fetch_statistics()
            super().observe(rollout)
            self.parameters.publish_statistics()

    def apply_gradients(self) -> None:
        if self._lock == "full":
            with self._memory.change():
                super().apply_gradients()
                self.parameters.fetch()
        else:
            super().apply_gradients()
            self.synchronize()

    def _guard_copy(self) -> AbstractContextManager[None]:
        return nullcontext() if self._lock == "none" else self._memory.lock()


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a worker has collected and learned since its last report."""

    episodes: Sequence[Episode]  # that ended
    active_lanes: Mapping[str, np.ndarray]  # {role: [lanes] bool}, the lanes that had a row in this iteration
    samples: Mapping[str, Sequence[Mapping[str, float]]]  # by role: the metrics of the sampled updates
    seconds: Mapping[str, float]  # of each phase


class WorkerService(Service):
    """A worker of a run, which learns from its own environments like a run in one process.

    Args:
        memory: the memory that the processes share; the other arguments are those of `Service`.
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
        self._seeds.seed_process()
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
        self._training = make_fixed_training(adapter)
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
        training.timer = Timer(time.process_time)
        end = time.monotonic() + REPORT_SECONDS
        while self._is_intact and not actor.episodes and time.monotonic() < end:
            if memory.counts[:, 0].sum() >= memory.limit:
                break
            self._is_intact = False
            actor.run_tick(self._record_update)
            self._is_intact = True
            memory.counts[self.index, 0] += actor.env_steps
            actor.env_steps = 0
        report = Report(
            episodes=list(actor.episodes),
            active_lanes=dict(actor.active_lanes),
            samples=dict(self._samples),
            seconds=training.timer.seconds,
        )
        actor.episodes.clear()
        self._samples.clear()
        return report

    def save(self, folder: Path, iterations: int) -> tuple[Mapping[str, str], Mapping[str, Any]]:
        """Write the experience of the worker to the folder of a checkpoint, and its learner.

        Worker 0 writes what all learners share, too, except the weights. `iterations` is that of `run`.

        Returns:
            The digests of the files, and what counters.json has about the worker.
        """
        self._actor.set_iterations(iterations)
        manifest = Manifest(folder)
        metadata = write_experience(self._training, self._actor, manifest, self.index)
        if self.index == 0:
            for role, components in self._training.by_role.items():
                write_learner(manifest, role, components.learner)
        return manifest.digests, metadata

    def close(self) -> None:
        """Close the environments."""
        self._adapter.close()

    def _record_update(self, role: str, result: LossResult) -> None:
        self.memory.counts[self.index, 1] += 1
        if is_sampled(role in self._sampled, self._first_update + int(self.memory.counts[self.index, 1])):
            self._sampled.add(role)
            self._samples[role].append({name: value.item() for name, value in result.compute_metrics().items()})


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
        if fcntl is None:
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
        task, base = RunTask.pack(self.settings, self.folder, self.counters.env_steps), self.settings.base
        self._memory, self._host = SharedMemory(base.n_workers), ProcessHost()
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
        self._ready: list[Supervised] = []  # those that have built their components
        for service, reply in self._supervisor.gather(inf):
            if isinstance(reply, ServiceLost):
                raise EnvironmentStartError(f"worker {service.index} {reply} before the run started")
            self._handle(service, reply)
        # Env steps and updates of each worker that were counted; env steps when its process was started.
        self._counted = np.zeros_like(memory.counts)
        self._first_steps = np.zeros(len(memory.counts), np.int64)
        self._lanes = RemoteLanes(len(memory.counts), self._supervisor.opened)

    def save(self, manifest: Manifest) -> dict[str, Any]:
        """Write the weights, and let the workers write their experience, except those that have ended."""
        for service in self._ready:
            self._supervisor.call(service, "save", manifest.folder, self.counters.iterations)
        saved: dict[int, Mapping[str, Any]] = {}
        replies = dict(self._supervisor.gather(inf, self._ready))
        for service in sorted(replies, key=lambda service: service.index):
            if isinstance(reply := replies[service], Failure):
                reply.raise_error()
            if not isinstance(reply, ServiceLost):  # the next call of a worker that is lost replaces it
                digests, saved[service.index] = reply
                manifest.digests |= digests
        for role, components in self.training.by_role.items():
            write_weights(manifest, role, components.learner)
            if 0 not in saved:
                write_learner(manifest, role, components.learner)
        metadata = saved.pop(0, None) or describe_all(self.training)
        others = {str(index): about for index, about in saved.items()}
        return {**metadata, **({"workers": others} if others else {})}

    def settle(self) -> None:
        """Let the workers finish their ticks; those that do not are ended."""
        self._memory.limit[:] = 0
        for service, reply in self._supervisor.gather(SETTLE_SECONDS, self._ready):
            if isinstance(reply, Report):
                self._count(service, reply)
            elif isinstance(reply, ServiceLost):
                self._ready.remove(service)
        for service in [each for each in self._ready if each.calls]:
            self._supervisor.end(service)
            self._ready.remove(service)
        self._count_steps()
        self._synchronize()

    def close(self) -> None:
        if self._host is None:
            return
        try:
            for service in self._supervisor.services:
                self._supervisor.call(service, "close")
            list(self._supervisor.gather(STOP_SECONDS))
        finally:
            self._host.close()
            self._memory.close()

    def advance(self, signals: DeferredSignals) -> bool:
        """Let the workers run until something is due, and do it."""
        self._count_steps()
        left = self.monitor.next_due - self.monitor.counters.env_steps
        self._memory.limit[:] = min(int(self._counted[:, 0].sum()) + left, 2**62)
        for service in self._ready:
            while len(service.calls) < min(len(self._memory.counts), 2):
                rows = self.monitor.reporter.rows
                self._supervisor.call(service, "run", self.monitor.counters.iterations, rows)
        self._receive()
        if self.monitor.is_due or signals.is_pending:
            self._memory.limit[:] = 0  # each worker replies after its tick
            while any(each.calls for each in self._ready):
                self._receive()
            self._synchronize()
            return self.monitor.do_due()
        self.monitor.show_progress()
        return False

    def _receive(self) -> None:
        """Wait for the replies of workers, and handle them."""
        for service, reply in self._supervisor.poll(DISPLAY_INTERVAL):
            self._handle(service, reply)
        self._count_steps()
        self.divergence.check()

    def _handle(self, service: Supervised, reply: Any) -> None:
        """Count a report, or replace a worker that was lost. Raise the error of a worker."""
        if isinstance(reply, Report):
            self._count(service, reply)
        elif isinstance(reply, Failure):
            reply.raise_error()
        elif isinstance(reply, ServiceLost):
            if service in self._ready:
                self._ready.remove(service)
            steps = self._memory.counts[service.index, 0]
            service.has_result = bool(steps > self._first_steps[service.index])
            self._first_steps[service.index] = steps
            self._supervisor.replace(service, reply, "another worker with an empty replay replaces it")
            self._supervisor.call(service, "build", self.counters, None)
        else:  # it has built its components
            self._ready.append(service)

    def _synchronize(self) -> None:
        """Take the parameters of the workers."""
        for components in self.training.by_role.values():
            components.learner.synchronize()

    def _count(self, service: Supervised, report: Report) -> None:
        """Count the episodes and the seconds of a report."""
        self.training.timer.split_lap(report.seconds)
        for role, samples in report.samples.items():
            self.monitor.reporter.add_samples(role, samples)
        self._count_steps()
        self._lanes.count_episodes(self.monitor, service.index, report.episodes, report.active_lanes)

    def _count_steps(self) -> None:
        """Count the env steps and the updates of all workers since the last call."""
        counts = self._memory.counts.copy()
        env_steps, updates = (counts - self._counted).sum(0)
        self.monitor.counters.env_steps += int(env_steps)
        self.monitor.counters.updates += int(updates)
        self._counted = counts
