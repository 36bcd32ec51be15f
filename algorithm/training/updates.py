"""The updates that follow a collected rollout, and the tick of environments in which they happen."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from algorithm.agents.agent import LossResult
from algorithm.rollout import Rollout
from algorithm.training.actor import Actor
from algorithm.training.batch_scheduler import BatchScheduler
from algorithm.training.components import AgentComponents, TrainingComponents


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
