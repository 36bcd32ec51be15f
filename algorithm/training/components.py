"""What a runtime runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from algorithm.adapters.adapter import Adapter
from algorithm.agents.agent import Agent
from algorithm.exploration.explorer import Explorer
from algorithm.specs import Role
from algorithm.training.batch_scheduler import Feed
from algorithm.training.learner import Learner
from algorithm.training.timer import Clock


@dataclass(frozen=True)
class Team:
    """All that one role needs: its agent, what it learns from and with."""

    role: Role
    agent: Agent
    feed: Feed
    learner: Learner
    explorer: Explorer | None = None

    def grow(self, role: Role) -> Team:
        """Add lanes, up to those of `role`. Return the team that replaces this one."""
        self.feed.replay.grow(role.lanes)
        self.learner.grow(role.lanes)
        if self.explorer:
            self.explorer.grow(role.lanes, self.feed.replay.initial_lanes)
        return replace(self, role=role)


@dataclass
class Parts:
    """One adapter, a team for each role, built when the role first appears, and the clock of those who use them.

    `enlarge` adds lanes to the team of a role, up to those that the role has by now, and returns the team that
    replaces it.
    """

    adapter: Adapter
    build: Callable[[str, Role], Team]
    teams: dict[str, Team] = field(default_factory=dict)
    clock: Clock = field(default_factory=Clock)
    enlarge: Callable[[str, Team, Role], Team] = lambda name, team, role: team.grow(role)

    @property
    def team_names(self) -> dict[str, list[str]]:
        """Return the names that have returns of their own, by role: the teams that share its agent, or the role."""
        roles = {name: self.adapter.roles.get(name, team.role) for name, team in self.teams.items()}
        return {name: list(role.lanes_by_team(name)) for name, role in roles.items()}

    @property
    def has_teams(self) -> bool:
        """Return whether teams share weights, so that their mean return does not measure these."""
        return any(len(names) > 1 for names in self.team_names.values())

    def team(self, role: str, other: Adapter | None = None) -> Team:
        """The team of `role`, which may have appeared in an `other` adapter first."""
        if role not in self.teams:
            known = self.adapter.roles if other is None else {**other.roles, **self.adapter.roles}
            self.teams[role] = self.build(role, known[role])
        return self.teams[role]

    def grow(self, role: str) -> Team:
        """Add to the team of `role` the lanes that the simulator has added."""
        self.teams[role] = self.enlarge(role, self.teams[role], self.adapter.roles[role])
        return self.teams[role]
