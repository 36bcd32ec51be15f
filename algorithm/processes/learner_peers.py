"""The other learners of a run with several, as the process of learner 0 sees them: start, rounds, saving, end."""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from algorithm.adapters.adapter import EnvironmentStartError
from algorithm.agents.agent import LossResult
from algorithm.checkpointing.checkpoint import METADATA, Checkpoint, StatefulActor, make_prefix
from algorithm.checkpointing.manifest import MANIFEST, Manifest
from algorithm.checkpointing.writer import write_all
from algorithm.errors import LearnerUnreachable, UserError, summarize_error
from algorithm.processes.collection import Failure
from algorithm.processes.host import Host, ServiceLost, ServiceSpec
from algorithm.processes.learner_group import GroupOptions, LearnerGroup, close_group
from algorithm.processes.learning_round import Reply, Round, RoundReport, get_schedule, learn_round
from algorithm.processes.messages import WorkerTraceback
from algorithm.rollout import Rollout
from algorithm.specs import Role
from algorithm.training.components import TrainingComponents

LOG = logging.getLogger(__name__)
CAUSE_SECONDS = 10.0  # seconds in which the cause of a failed call is found


@dataclass(frozen=True, kw_only=True)
class BuildTask:
    """The request to a learner to build its components.

    Attributes:
        roles: the roles of the run, with the lanes of one learner, in the order in which they are built.
        files: contents of the files of the checkpoint with its experience, by name; empty without one.
    """

    roles: Sequence[tuple[str, Role]]
    files: Mapping[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class LearnerFiles(Reply):
    """The reply of a learner that has saved its experience.

    Attributes:
        files: contents of the files, by name in the checkpoint.
        metadata: what counters.json has about the learner.
        error: error of the disk, if there was one.
    """

    files: Mapping[str, np.ndarray] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    error: OSError | None = None


class LearnerPeers:
    """The learners 1, 2, ... of a run, and the group that connects them with learner 0, which is this process.

    Each learner has its own replay, schedulers and generators, and the rollouts of its share of the actors. Learner 0
    requests each round, each checkpoint and the end of the run; the others only reply.

    Args:
        host: the system that runs them.
        size: the number of learners, with learner 0.
        timeout: seconds that a learner waits for the others in an update.
        start_timeout: seconds in which learners start.

    Attributes:
        group: connects the learners.
    """

    group: LearnerGroup

    def __init__(self, host: Host, *, size: int, timeout: float, start_timeout: float):
        self.host, self.size, self.timeout, self.start_timeout = host, size, timeout, start_timeout
        self._handles: list[Any] = []
        self._folder = Path(tempfile.mkdtemp(prefix="samara-learners-"))  # where learners on one machine meet
        self._reports: list[Sequence[RoundReport]] = []  # of the rounds since the last row of metrics

    def open(self, spec: ServiceSpec, address: str | None) -> None:
        """Start the learners, and connect them with this process.

        Args:
            spec: the service of a learner, a `LearnerService`; without GPUs, all learners learn on CPUs.
            address: the place where the learners meet, `tcp://HOST:PORT` of this machine; None: a file.

        Raises:
            EnvironmentStartError: a learner has not started in time, or has ended.
            Exception: a learner has raised it.
        """
        self._handles = [self.host.start(spec, rank) for rank in range(1, self.size)]
        tickets = [self.host.call(handle, "open") for handle in self._handles]
        replies = self._receive(tickets, self.start_timeout)
        for rank, reply in replies.items():
            if isinstance(reply, Failure):
                if isinstance(reply.error, ServiceLost):
                    raise EnvironmentStartError(f"learner {rank} ended before the run started: {reply.error}")
                reply.raise_error()
        if len(replies) < len(tickets):
            raise EnvironmentStartError(
                f"{len(tickets) - len(replies)} of {self.size} learners have not started within "
                f"{self.start_timeout:g} s (cluster_config.start_timeout); they may wait for free CPUs or GPUs of the "
                "cluster"
            )
        options = GroupOptions(
            address=address or f"file://{self._folder}/meeting",
            size=self.size,
            timeout=self.timeout,
            backend="nccl" if spec.gpus else "gloo",
        )
        with self._call_all("join", [options] * (self.size - 1)):
            self.group = options.join(0)

    @contextmanager
    def build(self, roles: Sequence[tuple[str, Role]], checkpoint: Checkpoint | None) -> Iterator[None]:
        """Let the learners build their components, while the block builds those of this process.

        Args:
            roles: the roles of the run, with the lanes of one learner, in the order in which the block builds them.
            checkpoint: the checkpoint of the run, if it has one.
        """
        tasks = []
        for rank in range(1, self.size):
            saved = checkpoint if checkpoint and rank < checkpoint.n_learners else None
            tasks.append(BuildTask(roles=roles, files=_read_files(saved, rank) if saved else {}))
        with self._call_all("build", tasks):
            yield

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
            record_update: receives the report of each update from a batch of this process.

        Returns:
            The number of updates, also of those without a batch of this process.

        Raises:
            LearnerUnreachable: a learner has ended, has raised an exception, or does not answer.
        """
        components = training.get(role)
        schedule = get_schedule(components.scheduler)
        own, *others = (Round(role=role, rollout=rollout, schedule=schedule) for rollout in rollouts)
        with self._call_all("learn", others) as replies:
            report = learn_round(components, own, record_update)
        self._reports.append([report, *replies])
        return report.updates

    def save(self, training: TrainingComponents, actor: StatefulActor, manifest: Manifest) -> dict[str, Any]:
        """Write the learners and the experience of all processes. Return what counters.json has about them.

        Raises:
            OSError: they cannot be written.
            LearnerUnreachable: a learner has ended, or has raised an exception.
        """
        with self._call_all("save", [None] * (self.size - 1)) as replies:
            pass
        metadata = write_all(training, actor, manifest)  # an error of the disk does not close the group
        for reply in replies:
            if reply.error:
                raise reply.error
            for name, content in reply.files.items():
                with manifest.open_file(name) as file:
                    file.write(content.data)
        others = {str(rank): reply.metadata for rank, reply in enumerate(replies, 1)}
        return {**metadata, "workers": others, "learners": self.size}

    def collect_metrics(self) -> dict[str, float]:
        """Return the metrics of each learner since the last call."""
        values = {}
        for rank, reports in enumerate(zip(*self._reports, strict=True)):
            seconds, waiting_seconds = (
                sum(getattr(report, name) for report in reports) for name in ("seconds", "waiting_seconds")
            )
            updates = sum(report.updates for report in reports)
            values[f"cluster/learner_{rank}_waiting"] = waiting_seconds / seconds
            values[f"cluster/learner_{rank}_updates_per_second"] = updates / max(seconds - waiting_seconds, 1e-9)
        self._reports.clear()
        return values

    def close(self) -> None:
        """End the communication; the host ends the processes."""
        close_group()
        shutil.rmtree(self._folder, ignore_errors=True)

    @contextmanager
    def _call_all(self, method: str, arguments: Sequence[Any]) -> Iterator[list[Any]]:
        """Call a method of each learner, which runs while the block does; then append the replies to the result.

        An exception closes the group, so that no learner waits for this process.

        Raises:
            LearnerUnreachable: a learner has ended, has raised an exception, or does not answer.
            UserError: a learner has raised it.
        """
        tickets = [self.host.call(each, method, value) for each, value in zip(self._handles, arguments, strict=True)]
        replies: list[Any] = []
        try:
            yield replies
            received = self._receive(tickets, self.timeout)
            _raise_cause(received)
            if len(received) < len(tickets):
                raise LearnerUnreachable(
                    f"{len(tickets) - len(received)} of {self.size} learners have not replied within {self.timeout:g} "
                    "s (cluster_config.timeout); resume from the last checkpoint"
                )
        except LearnerUnreachable:
            close_group()
            _raise_cause(self._receive(tickets, CAUSE_SECONDS))
            raise
        except BaseException:
            close_group()
            raise
        replies += received.values()
        for rank, reply in received.items():
            for record in reply.log:
                LOG.log(record.level, f"learner {rank}: {record.text}")

    def _receive(self, tickets: Sequence[Hashable], timeout: float) -> dict[int, Any]:
        """Return the replies to tickets that arrive in time, in the order of ranks; a Failure of a lost learner."""
        ranks = {ticket: rank for rank, ticket in enumerate(tickets, 1)}
        replies: dict[int, Any] = {}
        deadline = time.monotonic() + timeout
        while (waiting := [ticket for ticket in tickets if ranks[ticket] not in replies]) and (
            left := deadline - time.monotonic()
        ) > 0:
            for ticket in self.host.wait(waiting, left):
                try:
                    replies[ranks[ticket]] = self.host.fetch(ticket)
                except ServiceLost as error:
                    replies[ranks[ticket]] = Failure(error, "")
        return dict(sorted(replies.items()))


def _raise_cause(replies: Mapping[int, Any]) -> None:
    """Raise the exception of the first learner that failed by itself, or of the first that failed at all.

    Raises:
        LearnerUnreachable: a learner has ended, or has raised an exception.
        UserError: a learner has raised it.
    """
    failures = {rank: reply for rank, reply in replies.items() if isinstance(reply, Failure)}
    for rank, failure in sorted(failures.items(), key=lambda item: isinstance(item[1].error, LearnerUnreachable)):
        if isinstance(failure.error, LearnerUnreachable | UserError):
            failure.raise_error()
        raise LearnerUnreachable(
            f"learner {rank} has ended ({summarize_error(failure.error)}); resume from the last checkpoint"
        ) from WorkerTraceback(f"\n{failure.trace}")


def _read_files(checkpoint: Checkpoint, rank: int) -> dict[str, np.ndarray]:
    """Return the contents of the files of a checkpoint with the experience of a learner, by name."""
    prefix = make_prefix(rank)
    names = [name for name in Manifest.read(checkpoint.folder).digests if name.startswith(prefix)]
    return {name: np.fromfile(checkpoint.folder / name, np.uint8) for name in (METADATA, MANIFEST, *names)}
