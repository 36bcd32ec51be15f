"""A learner that averages its gradients with those of learners in other processes, and the updates that they make."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain, repeat
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from algorithm.agents.agent import LossResult
from algorithm.errors import UserError
from algorithm.parts.components_builder import Sharing
from algorithm.processes.learner_connection import LearnerConnection
from algorithm.rollout import Rollout
from algorithm.training.batch_scheduler import BatchScheduler
from algorithm.training.components import AgentComponents
from algorithm.training.learner import Learner
from algorithm.training.updates import complete_report

LOG = logging.getLogger(__name__)


class AveragingLearner(Learner):
    """A learner of one of several processes that make the same steps, so that their parameters stay the same.

    Each learner has its own rollouts and replay. An update is `compute_gradients`, `average_gradients`, and then
    `apply_gradients`. The average weights the gradient of each learner by the number of valid rows in its batch. It is
    thus the gradient of the batch that consists of the batches of all learners; it is clipped after that. A gradient
    that is not finite makes the average not finite, so that all learners skip the step. Networks, moments of
    optimizers, running statistics and counters are the same in all learners; replay, priorities, noise and generators
    are not.

    Args:
        arguments: the positional arguments of Learner, without `place`.
        connection: connects the learners.
        check_every: the number of updates between two comparisons of the parameters.

    Raises:
        UserError: the agent has a natural step, which needs the whole batch in one process.
        LearnerUnreachable: another learner has ended or does not answer, here or in a later call.
    """

    def __init__(self, *arguments: Any, connection: LearnerConnection, check_every: int = 1000):
        self._shared_tensors: list[Tensor] = []  # those that are the same in all learners
        super().__init__(*arguments, place=self._keep_shared)  # type: ignore[misc]
        if self._has_natural_step:
            raise UserError("acer_config.trust_region full is not for several learners: use efficient or off")
        self.connection, self.check_every = connection, check_every
        if self.agent.merges_moments:
            self.agent.merge_moments = connection.merge_moments
        self.synchronize()

    def synchronize(self) -> None:
        """Copy what all learners share from learner 0, as after it has restored a checkpoint."""
        for tensor in self._shared_tensors:
            self.connection.broadcast(tensor, 0)
        self._mark_outdated()

    def observe(self, rollout: Rollout | None) -> None:
        """Update the running statistics with the rollouts of all learners, in the order of their ranks.

        Args:
            rollout: the collected rollout of this learner; None if it has none.
        """
        for rank in range(self.connection.size):
            if rank == self.connection.rank and rollout is not None:
                super().observe(rollout)
            for tensor in (self.parameters.statistics, torch.from_numpy(self._counts)):
                self.connection.broadcast(tensor, rank)
        self._mark_outdated()

    def average_gradients(self, batch: Rollout | None, report: LossResult | None) -> bool:
        """Replace the gradient of a batch by the average over the learners.

        The changes of the running statistics of batch norms are averaged with the same weights.

        Args:
            batch: the batch of the gradient; None if this learner has no further batch.
            report: the report of its losses, or None.

        Returns:
            Whether a step follows. There is none if no learner has a batch, or if the mean KL divergence over the
            batches of all learners ends the epochs.
        """
        if batch is None and self.agent.merges_moments:
            self.connection.merge_moments(0, 0.0, 0.0)  # as the learners with a batch do in their losses
        rows = 0 if batch is None else int(batch.valid[batch.burn_in :].sum())
        kl_excess = report.kl_excess if report and report.kl_excess is not None else 0.0
        groups = list(self.parameters.group_slices)
        is_stepped = [batch is not None and name not in self._idle_groups for name in groups]
        numbers = self.connection.gather(batch is not None, rows, rows * kl_excess, *is_stepped)
        n_batches, total_rows, total_excess, *n_stepped = numbers.sum(0)
        if not n_batches or total_excess > 0:
            return False
        self._idle_groups = {name for name, n in zip(groups, n_stepped, strict=True) if not n}
        for tensor in (self.parameters.gradient, self.parameters.increments):
            if batch is None:
                tensor.zero_()
            else:
                tensor *= float(rows / max(total_rows, 1))
            if len(tensor):
                self.connection.sum(tensor)
        return True

    def apply_gradients(self) -> None:
        """Step by the average gradient; after every `check_every` updates, compare the parameters of all learners."""
        super().apply_gradients()
        if self.agent.reset and self.updates % self.agent.reset.every == 0:
            self.synchronize()  # the new initial parameters are from the generator of each process
        elif self.updates % self.check_every == 0:
            self._check_equality()

    def _check_equality(self) -> None:
        """Compare what all learners share. If it differs, log a warning and copy it from learner 0."""
        checksum = 0
        for tensor in self._shared_tensors:
            checksum = zlib.crc32(tensor.cpu().numpy().data, checksum)
        checksums = self.connection.gather(checksum)[:, 0]
        different = np.flatnonzero(checksums != checksums[0]).tolist()
        if not different:
            return
        if self.connection.rank == 0:
            LOG.warning(
                f"after update {self.updates} the parameters of learners {different} differ from those of learner 0, "
                "as by rounding on another kind of processor; all learners continue with those of learner 0"
            )
        self.synchronize()

    def _keep_shared(self, tensor: Tensor) -> Tensor:
        self._shared_tensors.append(tensor)
        return tensor


def make_learner_sharing(connection: LearnerConnection) -> Sharing:
    """Return what one of several learners shares with the others."""
    return Sharing(make_learner=partial(AveragingLearner, connection=connection), is_main=connection.rank == 0)


def learn_together(
    learner: AveragingLearner,
    scheduler: BatchScheduler,
    rollout: Rollout | None,
    record_update: Callable[[LossResult], object],
) -> None:
    """Make the updates that follow a collected rollout of each learner, as `run_updates` does for a single learner.

    All learners call it, in the same order of roles. The updates end when no learner has a further batch; until then,
    a learner without one follows the gradients of the others.

    Args:
        learner: the learner of this process.
        scheduler: its scheduler.
        rollout: its rollout; None if it has none.
        record_update: receives the report of each update from a batch of this learner.
    """
    learner.observe(rollout)
    rollout = None if rollout is None else learner.record(rollout)
    batches = () if rollout is None else scheduler(rollout)
    for batch in chain(batches, repeat(None)):
        report = learner.compute_gradients(batch) if batch is not None else None
        if not learner.average_gradients(batch, report):
            return
        learner.apply_gradients()
        if rollout is not None and batch is not None and report is not None:
            complete_report(report, scheduler, batch, rollout)
            record_update(report)


@dataclass(frozen=True, kw_only=True)
class RoundReport:
    """The report of one learner on a round.

    Attributes:
        updates: updates in the round, also those without a batch of this learner.
        seconds: seconds of the round.
        waiting_seconds: seconds in calls of the connection, which wait for the other learners.
    """

    updates: int
    seconds: float
    waiting_seconds: float


def learn_round(
    components: AgentComponents,
    rollout: Rollout | None,
    schedule: Mapping[str, Any],
    record_update: Callable[[LossResult], object] = lambda report: None,
) -> RoundReport:
    """Make the updates of a round, in which all learners take part.

    Args:
        components: the components of the role in this process.
        rollout: the rollout of this learner; None if it has none.
        schedule: the state of learner 0's scheduler, so that all learners draw the same number of batches.
        record_update: receives the report of each update from a batch of this learner.

    Raises:
        LearnerUnreachable: another learner has ended or does not answer.
    """
    learner, scheduler = components.learner, components.scheduler
    assert isinstance(learner, AveragingLearner)
    start, waited, updates = perf_counter(), learner.connection.waiting_seconds, learner.updates
    scheduler.rng.bit_generator.state = schedule["generator"]
    scheduler.restore(schedule)
    learn_together(learner, scheduler, rollout, record_update)
    return RoundReport(
        updates=learner.updates - updates,
        seconds=perf_counter() - start,
        waiting_seconds=learner.connection.waiting_seconds - waited,
    )
