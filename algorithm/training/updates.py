"""The updates that follow a collected rollout."""

from __future__ import annotations

from collections.abc import Callable

from algorithm.agents.agent import LossReport
from algorithm.rollout import Rollout
from algorithm.training.components import AgentComponents


def learn_from(components: AgentComponents, rollout: Rollout, record_update: Callable[[LossReport], object]) -> None:
    """Make the updates that follow a collected rollout of the role of `components`.

    Args:
        components: the components of the role.
        rollout: the rollout.
        record_update: receives the report of each update.
    """
    learner, scheduler = components.learner, components.scheduler
    learner.observe(rollout)
    for batch in scheduler(rollout):
        report = learner.compute_gradients(batch)
        if report.ends_epochs:
            return
        learner.apply_gradients()
        scheduler.prioritize(batch, report.compute_td_errors)
        record_update(report)
