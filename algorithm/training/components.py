"""What a runtime runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from algorithm.adapters.adapter import Adapter
from algorithm.agents.agent import Agent
from algorithm.exploration.explorer import Explorer
from algorithm.specs import Role
from algorithm.training.batch_scheduler import BatchScheduler
from algorithm.training.learner import Learner
from algorithm.training.timer import Timer


@dataclass(frozen=True)
class AgentComponents:
    """All that one role needs: its agent, what it learns from and with."""

    role: Role
    agent: Agent
    scheduler: BatchScheduler
    learner: Learner
    explorer: Explorer | None = None

    def grow(self, role: Role) -> AgentComponents:
        """Add lanes, up to those of `role`. Return the team that replaces this one."""
        self.scheduler.replay.grow(role.lanes)
        self.learner.grow(role.lanes)
        if self.explorer:
            self.explorer.grow(role.lanes, self.scheduler.replay.initial_lanes)
        return replace(self, role=role)


@dataclass
class TrainingComponents:
    """One adapter, a team for each role, built when the role first appears, and the clock of those who use them.

    `grow_components` adds lanes to the team of a role, up to those that the role has by now, and returns the team that
    replaces it.
    """

    adapter: Adapter
    build: Callable[[str, Role], AgentComponents]
    by_role: dict[str, AgentComponents] = field(default_factory=dict)
    timer: Timer = field(default_factory=Timer)
    grow_components: Callable[[str, AgentComponents, Role], AgentComponents] = lambda name, team, role: team.grow(role)

    @property
    def team_names(self) -> dict[str, list[str]]:
        """Return the names that have returns of their own, by role: the teams that share its agent, or the role."""
        roles = {name: self.adapter.roles.get(name, components.role) for name, components in self.by_role.items()}
        return {name: list(role.count_lanes_by_team(name)) for name, role in roles.items()}

    @property
    def has_teams(self) -> bool:
        """Return whether teams share weights, so that their mean return does not measure these."""
        return any(len(names) > 1 for names in self.team_names.values())

    def get(self, role: str, other_adapter: Adapter | None = None) -> AgentComponents:
        """The team of `role`, which may have appeared in an `other_adapter` adapter first."""
        if role not in self.by_role:
            known = self.adapter.roles if other_adapter is None else {**other_adapter.roles, **self.adapter.roles}
            self.by_role[role] = self.build(role, known[role])
        return self.by_role[role]

    def grow(self, role: str) -> AgentComponents:
        """Add to the team of `role` the lanes that the simulator has added."""
        self.by_role[role] = self.grow_components(role, self.by_role[role], self.adapter.roles[role])
        return self.by_role[role]
