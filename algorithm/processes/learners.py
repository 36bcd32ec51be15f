"""The learners of a run with several: their rounds, the service of the others, and how learner 0 uses it."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from algorithm.agents.agent import LossResult
from algorithm.checkpointing.checkpoint import (
    MANIFEST,
    METADATA,
    Checkpoint,
    Manifest,
    PackedFolder,
    Stateful,
    make_prefix,
    pack_folder,
    unpack_folder,
    write_all,
    write_experience,
)
from algorithm.errors import LearnerUnreachable, UserError, summarize_error
from algorithm.parts.components_builder import ComponentsBuilder, Sharing
from algorithm.parts.lock import make_temporary_folder
from algorithm.parts.seeding import RunSeeds
from algorithm.processes.averaging_learner import AveragingLearner, LearnerConnection, close_on_error
from algorithm.processes.fleet import RemoteEnvironments
from algorithm.processes.host import Failure, Host, RemoteTraceback, ServiceLost, ServiceSpec
from algorithm.processes.services import RunTask, Service, start_service
from algorithm.processes.supervisor import Supervised, Supervisor
from algorithm.rollout import Rollout
from algorithm.specs import Role
from algorithm.training.components import AgentComponents, TrainingComponents, complete_result

CAUSE_SECONDS = 10.0  # seconds in which the cause of a failed call is found


def learn_round(
    components: AgentComponents,
    rollout: Rollout | None,
    schedule: Mapping[str, Any],
    record_update: Callable[[LossResult], object] = lambda result: None,
) -> tuple[int, float, float]:
    """Make the updates that follow a collected rollout of each learner, as `run_updates` does for a single learner.

    All learners call it, in the same order of roles. The updates end when no learner has a further batch; until then,
    a learner without one follows the gradients of the others.

    Args:
        components: the components of the role in this process.
        rollout: the rollout of this learner; None if it has none.
        schedule: the state of learner 0's scheduler, so that all learners draw the same number of batches.
        record_update: receives the result of each update from a batch of this learner.

    Returns:
        The number of updates, also of those without a batch of this learner; the seconds of the round, and those in
        calls of the connection, which wait for the other learners.

    Raises:
        LearnerUnreachable: another learner has ended or does not answer.
    """
    learner, scheduler = components.learner, components.scheduler
    assert isinstance(learner, AveragingLearner)
    start, waited, updates = perf_counter(), learner.connection.waiting_seconds, learner.updates
    scheduler.rng.bit_generator.state = schedule["generator"]
    scheduler.restore(schedule)
    learner.observe(rollout)
    rollout = None if rollout is None else learner.record(rollout)
    batches = () if rollout is None else scheduler(rollout)
    for batch in chain(batches, repeat(None)):
        result = learner.compute_gradients(batch) if batch is not None else None
        if not learner.average_gradients(batch, result):
            break
        learner.apply_gradients()
        if rollout is not None and batch is not None and result is not None:
            complete_result(result, scheduler, batch, rollout)
            record_update(result)
    return learner.updates - updates, perf_counter() - start, learner.connection.waiting_seconds - waited


class LearnerService(Service):
    """A learner other than learner 0, with the rank `index` + 1."""

    def open(self) -> None:
        """Prepare the files of the run."""
        self._folder, self.rank = self.task.unpack(), self.index + 1

    @close_on_error()
    def build(self, connect: Callable[..., LearnerConnection], roles: Mapping[str, Role], files: PackedFolder) -> None:
        """Connect with the other learners, and build the components of all roles, while they build theirs.

        Args:
            connect: returns the connection, given the rank.
            roles: the roles of the run, with the lanes of one learner, in the order in which they are built.
            files: the files of the checkpoint with the experience of this learner; empty without one.
        """
        settings, connection = self.task.settings, connect(rank=self.rank)
        seeds = RunSeeds(settings.base.seed, (self.rank, 0))
        seeds.seed_process()
        adapter = RemoteEnvironments(roles)
        with tempfile.TemporaryDirectory(dir=self._folder.path) as folder:
            unpack_folder(files, Manifest(Path(folder)))
            checkpoint = Checkpoint(Path(folder), self.rank) if files else None
            sharing = Sharing(make_learner=partial(AveragingLearner, connection=connection), is_main=False)
            builder = ComponentsBuilder(settings, self._folder, checkpoint, lambda line: None, sharing, seeds)
            self._training = TrainingComponents(adapter, builder, grow_components=builder.grow)
            for name, role in roles.items():
                if role.lanes > self._training.get(name).role.lanes:  # more actors than the checkpoint has lanes for
                    self._training.grow(name)
            if checkpoint:
                checkpoint.restore_process(adapter)

    @close_on_error()
    def learn(self, role: str, rollout: Rollout | None, schedule: Mapping[str, Any]) -> tuple[int, float, float]:
        """Make the updates of a round, while the other learners make them, as `learn_round` does."""
        return learn_round(self._training.by_role[role], rollout, schedule)

    @close_on_error()
    def save(self) -> tuple[PackedFolder, Mapping[str, Any]] | OSError:
        """Return the files with the experience of this learner, and what counters.json has about it.

        An error of the disk is returned, too, since the next checkpoint tries again.
        """
        try:
            with tempfile.TemporaryDirectory(dir=self._folder.path) as folder:
                manifest = Manifest(Path(folder))
                metadata = write_experience(self._training, self._training.adapter, manifest, self.rank)
                return pack_folder(manifest.folder, manifest.digests, manifest.digests), metadata
        except OSError as error:
            return error


class LearnerPeers:
    """The learners 1, 2, ... of a run, which are started; learner 0 is this process.

    Each learner has its own replay, schedulers and generators, and the rollouts of its share of the actors. Learner 0
    requests each round, each checkpoint and the end of the run; the others only reply.

    Args:
        host: runs them. Without GPUs, all learners learn on CPUs.
        task: the data from which they start.

    Raises:
        EnvironmentStartError: a learner has not started in time, or has ended.
        Exception: a learner has raised it.
    """

    def __init__(self, host: Host, task: RunTask):
        cluster, base = task.settings.cluster, task.settings.base
        if cluster.gpus_per_learner:  # Ray shows each process its own GPU only, as the first one
            task = replace(task, settings=replace(task.settings, base=base.model_copy(update={"device": "cuda"})))
        spec = ServiceSpec(
            kind="Learner",
            make=partial(start_service, LearnerService, task),
            cpus=cluster.cpus_per_learner,
            gpus=cluster.gpus_per_learner,
        )
        self.supervisor = Supervisor(
            host, spec, name=lambda index: f"learner {index + 1}", start_timeout=cluster.start_timeout
        )
        self.size, self.timeout = cluster.learners, cluster.timeout
        self._totals = np.zeros((self.size, 3))  # of what `learn_round` returns, since the last row of metrics
        self.supervisor.ensure(self.size - 1)
        self.supervisor.wait_for_start(needed=self.size - 1)
        if address := host.meeting_host:
            with socket.socket() as listener:
                listener.bind(("", 0))
                meeting = f"tcp://{address}:{listener.getsockname()[1]}"  # a port that is free
        else:  # on one machine they meet in a file, so that no port is open
            meeting = f"file://{make_temporary_folder('samara-learners-')}/meeting"
        self._connect = partial(
            LearnerConnection,
            meeting,
            size=self.size,
            timeout=self.timeout,
            backend="nccl" if cluster.gpus_per_learner else "gloo",
        )

    @contextmanager
    def build(self, roles: Mapping[str, Role], checkpoint: Checkpoint | None) -> Iterator[None]:
        """Connect the learners, and let them build their components, while the block builds those of this process.

        Args:
            roles: the roles of the run, with the lanes of one learner, in the order in which the block builds them.
            checkpoint: the checkpoint of the run, if it has one.
        """
        tasks = []
        for rank in range(1, self.size):
            files: PackedFolder = {}
            if checkpoint and rank < checkpoint.n_learners:
                digests, prefix = Manifest.read(checkpoint.folder).digests, make_prefix(rank)
                names = [METADATA, MANIFEST, *(name for name in digests if name.startswith(prefix))]
                files = pack_folder(checkpoint.folder, names, digests)
            tasks.append((self._connect, roles, files))
        with self._call_all("build", tasks):
            self._connection = self._connect(rank=0)
            yield

    def make_learner(self, *arguments: Any) -> AveragingLearner:
        """Return a learner of this process, within the block of `build`."""
        return AveragingLearner(*arguments, connection=self._connection)

    def learn(
        self,
        training: TrainingComponents,
        role: str,
        rollouts: Sequence[Rollout | None],
        record_update: Callable[[LossResult], object],
    ) -> int:
        """Make the updates of a round on all learners.

        Args:
            training: the components of this process.
            role: the role that learns.
            rollouts: the rollout of each learner; None for a learner without one.
            record_update: receives the result of each update from a batch of this process.

        Returns:
            The number of updates, also of those without a batch of this process.

        Raises:
            LearnerUnreachable: a learner has ended, has raised an exception, or does not answer.
        """
        scheduler = training.get(role).scheduler
        schedule = {"generator": scheduler.rng.bit_generator.state, **scheduler.state()}
        own, *others = rollouts
        with self._call_all("learn", [(role, rollout, schedule) for rollout in others]) as replies:
            report = learn_round(training.get(role), own, schedule, record_update)
        self._totals += [report, *replies]
        return report[0]

    def save(self, training: TrainingComponents, actor: Stateful, manifest: Manifest) -> dict[str, Any]:
        """Write the learners and the experience of all processes. Return what counters.json has about them.

        Raises:
            OSError: they cannot be written.
            LearnerUnreachable: a learner has ended, or has raised an exception.
        """
        with self._call_all("save", [()] * (self.size - 1)) as replies:
            pass
        metadata = write_all(training, actor, manifest)  # an error of the disk does not close the group
        others = {}
        for rank, reply in enumerate(replies, 1):
            if isinstance(reply, OSError):
                raise reply
            files, others[str(rank)] = reply
            unpack_folder(files, manifest)
        return {**metadata, "workers": others, "learners": self.size}

    def collect_metrics(self) -> dict[str, float]:
        """Return the metrics of each learner since the last call."""
        values = {}
        for rank, (updates, seconds, waiting_seconds) in enumerate(self._totals.tolist()):
            if seconds:
                values[f"cluster/learner_{rank}_waiting"] = waiting_seconds / seconds
                values[f"cluster/learner_{rank}_updates_per_second"] = updates / max(seconds - waiting_seconds, 1e-9)
        self._totals[:] = 0
        return values

    @contextmanager
    def _call_all(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> Iterator[list[Any]]:
        """Call a method of each learner, which runs while the block does; then append the replies to the result.

        An exception closes the connection, so that no learner waits for this process.

        Raises:
            LearnerUnreachable: a learner has ended, has raised an exception, or does not answer.
            UserError: a learner has raised it.
        """
        for service, values in zip(self.supervisor.services, arguments, strict=True):
            self.supervisor.call(service, method, *values)
        replies: list[Any] = []
        try:
            with close_on_error():
                yield replies
                # The replies to calls before an exception of the caller arrive first, and are replaced.
                received = dict(self.supervisor.gather(self.timeout))
                _raise_cause(received)
                if missing := len(arguments) - len(received):
                    raise LearnerUnreachable(
                        f"{missing} of {self.size} learners did not answer within {self.timeout:g} s "
                        "(cluster_config.timeout); resume from the last checkpoint"
                    )
        except LearnerUnreachable:
            _raise_cause(dict(self.supervisor.gather(CAUSE_SECONDS)))
            raise
        replies += [received[service] for service in self.supervisor.services]


def _raise_cause(replies: Mapping[Supervised, Any]) -> None:
    """Raise the exception of the first learner that failed by itself, or of the first that failed at all.

    Raises:
        LearnerUnreachable: a learner has ended, or has raised an exception.
        UserError: a learner has raised it.
    """
    failures = [(each.index + 1, reply) for each, reply in replies.items() if isinstance(reply, Failure | ServiceLost)]
    failures.sort(key=lambda item: (isinstance(getattr(item[1], "error", None), LearnerUnreachable), item[0]))
    for rank, failure in failures:
        if isinstance(failure, ServiceLost):
            raise LearnerUnreachable(f"learner {rank} {failure}; resume from the last checkpoint")
        if isinstance(failure.error, LearnerUnreachable | UserError):
            failure.raise_error()
        raise LearnerUnreachable(
            f"learner {rank} ended ({summarize_error(failure.error)}); resume from the last checkpoint"
        ) from RemoteTraceback(f"\n{failure.trace}")
