"""A round of several learners: each learns from its rollouts, and all of them make the same updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from algorithm.agents.agent import LossResult
from algorithm.processes.averaging_learner import AveragingLearner, learn_together
from algorithm.processes.messages import LogRecord
from algorithm.rollout import Rollout
from algorithm.training.batch_scheduler import BatchScheduler
from algorithm.training.components import AgentComponents


@dataclass(frozen=True, kw_only=True)
class Round:
    """The part of one learner in a round.

    Attributes:
        role: the role that learns.
        rollout: its rollout; None for a learner without one.
        schedule: the state of learner 0's scheduler, so that all learners draw the same number of batches.
    """

    role: str
    rollout: Rollout | None
    schedule: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Reply:
    """A reply of a learner without a result; `log` are the messages that it has logged."""

    log: Sequence[LogRecord] = ()


@dataclass(frozen=True, kw_only=True)
class RoundReport(Reply):
    """The report of one learner on a round.

    Attributes:
        updates: updates in the round, also those without a batch of this learner.
        seconds: seconds of the round.
        waiting_seconds: seconds in calls of the group, which wait for the other learners.
    """

    updates: int
    seconds: float
    waiting_seconds: float


def get_schedule(scheduler: BatchScheduler) -> dict[str, Any]:
    """Return the state of a scheduler, for `Round.schedule`."""
    return {"generator": scheduler.rng.bit_generator.state, **scheduler.state()}


def learn_round(
    components: AgentComponents,
    own: Round,
    record_update: Callable[[LossResult], object] = lambda report: None,
) -> RoundReport:
    """Make the updates of a round, in which all learners take part.

    Args:
        components: the components of the role in this process.
        own: the part of this learner.
        record_update: receives the report of each update from a batch of this learner.

    Raises:
        LearnerUnreachable: another learner has ended or does not answer.
    """
    learner, scheduler = components.learner, components.scheduler
    assert isinstance(learner, AveragingLearner)
    start, waited, updates = perf_counter(), learner.group.waiting_seconds, learner.updates
    scheduler.rng.bit_generator.state = own.schedule["generator"]
    scheduler.restore(own.schedule)
    learn_together(learner, scheduler, own.rollout, record_update)
    return RoundReport(
        updates=learner.updates - updates,
        seconds=perf_counter() - start,
        waiting_seconds=learner.group.waiting_seconds - waited,
    )
