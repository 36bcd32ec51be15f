"""The updates that follow a collected rollout, the tick in which they happen, and the end of a run that diverges."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from algorithm.agents.agent import LossResult
from algorithm.rollout import Rollout
from algorithm.training.actor import Actor
from algorithm.training.batch_scheduler import BatchScheduler
from algorithm.training.components import AgentComponents, TrainingComponents

LOG = logging.getLogger(__name__)
CHECK_INTERVAL = 100  # updates between checks for divergence; a check waits for the device


def run_tick(training: TrainingComponents, actor: Actor, record_update: Callable[[str, LossResult], object]) -> None:
    """Make one tick of the environments, and the updates that follow the rollouts that it completes.

    Agents without a replay learn first; the actor decides and sends the actions; agents with a replay learn while
    environments in other processes execute them; the actor receives the next steps. Thus an agent without a replay
    decides the first row of a rollout with the parameters that it learned from the previous one. An agent with a replay
    decides it before: its rollouts record the policy that acted (`behavior`).

    Args:
        training: the components of all roles.
        actor: the actor.
        record_update: receives the role and the report of each update.
    """

    def learn(role: str, rollout: Rollout) -> None:
        run_updates(training.get(role), rollout, lambda report: record_update(role, report))
        training.timer.lap("learning")

    overlapping = []
    for role, rollout in actor.complete_rollouts():
        if training.get(role).agent.schedule.uses_replay:
            overlapping.append((role, rollout))
        else:
            learn(role, rollout)
    actor.act()
    for role, rollout in overlapping:
        learn(role, rollout)
    actor.receive()


def run_updates(components: AgentComponents, rollout: Rollout, record_update: Callable[[LossResult], object]) -> None:
    """Make the updates that follow a collected rollout of the role of `components`.

    Args:
        components: the components of the role.
        rollout: the rollout.
        record_update: receives the report of each update.
    """
    learner, scheduler = components.learner, components.scheduler
    learner.observe(rollout)
    rollout = learner.record(rollout)
    for batch in scheduler(rollout):
        report = learner.compute_gradients(batch)
        if report.ends_epochs:
            return
        learner.apply_gradients()
        complete_report(report, scheduler, batch, rollout)
        record_update(report)


def complete_report(report: LossResult, scheduler: BatchScheduler, batch: Rollout, rollout: Rollout) -> None:
    """Set the priorities of a batch that was learned from, and add to its report what the agent does not have.

    Args:
        report: the report of the update.
        scheduler: the scheduler of the batch.
        batch: the batch.
        rollout: the collected rollout that the update follows.
    """
    scheduler.prioritize(batch, report.compute_td_errors)
    report.add_metrics(partial(scheduler.compute_metrics, batch))
    report.raw_action = rollout.raw_action


class Diverged(RuntimeError):
    """Too many successive updates had a loss or gradient that is NaN or infinite."""


class DivergenceDetector:
    """A detector that logs skipped updates, and ends a run if `limit` successive updates of a role are skipped."""

    def __init__(self, training: TrainingComponents, limit: int):
        self.training, self.limit = training, limit
        self._interval = min(CHECK_INTERVAL, limit)
        self._updates = 0
        self._logged_skips = {role: components.learner.skipped_updates for role, components in training.by_role.items()}

    def count_update(self) -> None:
        """Count an update, and check the learners at intervals. Raises Diverged."""
        self._updates += 1
        if self._updates % self._interval == 0:
            self.check()

    def check(self) -> None:
        """Check the learners of all roles.

        Raises:
            Diverged: the last `limit` updates of a role were skipped.
        """
        for role, components in self.training.by_role.items():
            learner = components.learner
            skipped = learner.skipped_updates
            if skipped > self._logged_skips.get(role, 0):
                LOG.warning(
                    f"{skipped - self._logged_skips.get(role, 0)} updates of role {role!r} were skipped up to update "
                    f"{learner.updates:,}: their loss or gradient is NaN or infinite"
                )
                self._logged_skips[role] = skipped
            if learner.consecutive_skips >= self.limit:
                raise Diverged(
                    f"the last {learner.consecutive_skips} updates of role {role!r} had a NaN or infinite loss or "
                    f"gradient (base_config.max_nonfinite_updates is {self.limit}); the last checkpoint is unchanged; "
                    "try a smaller learning_rate, or a reward_scale or reward_clip for large rewards"
                )
