"""The components of a run: for each role an agent, scheduler, learner and explorer; and the updates that they make."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from algorithm.adapters.adapter import Adapter
from algorithm.agents.agent import Agent, LossResult, add_noise
from algorithm.exploration.explorer import Explorer
from algorithm.rollout import Decision, Rollout, Step
from algorithm.specs import Role
from algorithm.training.batch_scheduler import BatchScheduler
from algorithm.training.learner import Learner
from algorithm.training.timer import Timer

LOG = logging.getLogger(__name__)
CHECK_INTERVAL = 100  # updates between checks for divergence; a check waits for the device


@dataclass(frozen=True, kw_only=True)
class AgentComponents:
    """The components of one role: its agent, its scheduler (with the replay), its learner, and an explorer if set."""

    role: Role
    agent: Agent
    scheduler: BatchScheduler
    learner: Learner
    explorer: Explorer | None = None

    def act(self, step: Step, memory: np.ndarray) -> Decision:
        """Select actions for collection: at random in a run's first `random_steps` rows, then by explorer or agent.

        In the next `random_decay_steps` rows, a random action replaces each with a probability that falls to 0.

        Args:
            step: The lanes that need a decision.
            memory: The agent's memory [n, state_size] of these lanes.
        """
        agent, rows = self.agent, self.learner.rows_seen - self.agent.random_steps
        if rows < 0:
            return agent.act_uniformly(step, memory)
        decision = self.explorer.act(agent, step, memory) if self.explorer else agent.act(step, memory)
        if rows >= agent.random_decay_steps:
            return decision
        level = 1 - rows / agent.random_decay_steps
        return add_noise(agent, decision, np.full(len(memory), level, np.float32))

    def grow(self, role: Role) -> AgentComponents:
        """Add lanes until there are as many as `role` has. Return the components that replace these."""
        self.scheduler.grow(role.lanes)
        self.learner.grow(role.lanes)
        if self.explorer:
            self.explorer.grow(role.lanes, self.scheduler.initial_lanes)
        return replace(self, role=role)


@dataclass
class TrainingComponents:
    """The components of a run: its adapter, the components of each role, and the timer.

    Attributes:
        adapter: the environments.
        build: builds the components of a role, when the role first appears.
        by_role: the components of each role that has appeared.
        timer: the timer of the run.
        grow_components: adds lanes to the components of a role until there are as many as the given role has, and
            returns the components that replace them.
    """

    adapter: Adapter
    build: Callable[[str, Role], AgentComponents]
    by_role: dict[str, AgentComponents] = field(default_factory=dict)
    timer: Timer = field(default_factory=Timer)
    grow_components: Callable[[str, AgentComponents, Role], AgentComponents] = lambda _, each, role: each.grow(role)

    @property
    def lanes_by_team(self) -> dict[str, dict[str, int]]:
        """Return, by role, the number of lanes of each team that shares its agent, or of the role."""
        roles = {name: self.adapter.roles.get(name, components.role) for name, components in self.by_role.items()}
        return {name: dict(role.count_lanes_by_team(name)) for name, role in roles.items()}

    @property
    def has_teams(self) -> bool:
        """Return whether teams share an agent, so that their mean return does not measure its weights."""
        return any(len(teams) > 1 for teams in self.lanes_by_team.values())

    def get(self, role: str, other_adapter: Adapter | None = None) -> AgentComponents:
        """Return the components of a role; build them if it is new, perhaps in `other_adapter`, as of evaluation."""
        if role not in self.by_role:
            known = self.adapter.roles if other_adapter is None else {**other_adapter.roles, **self.adapter.roles}
            self.by_role[role] = self.build(role, known[role])
        return self.by_role[role]

    def grow(self, role: str) -> AgentComponents:
        """Add the lanes that the adapter has added to a role. Return the components of the role."""
        self.by_role[role] = self.grow_components(role, self.by_role[role], self.adapter.roles[role])
        return self.by_role[role]


def run_updates(components: AgentComponents, rollout: Rollout, record_update: Callable[[LossResult], object]) -> None:
    """Make the updates that follow a collected rollout of the role of `components`, and record the result of each."""
    learner, scheduler = components.learner, components.scheduler
    learner.observe(rollout)
    rollout = learner.record(rollout)
    for batch in scheduler(rollout):
        result = learner.compute_gradients(batch)
        if result.kl_excess > 0:
            return
        learner.apply_gradients()
        complete_result(result, scheduler, batch, rollout)
        record_update(result)


def complete_result(result: LossResult, scheduler: BatchScheduler, batch: Rollout, rollout: Rollout) -> None:
    """Set the priorities of a batch that was learned from, and add to its result what the agent does not have.

    `rollout` is the collected rollout that the update follows.
    """
    scheduler.prioritize(batch, result.compute_td_errors)
    result.add_metrics(partial(scheduler.compute_metrics, batch))
    result.raw_action = rollout.raw_action


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
