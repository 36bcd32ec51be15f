"""The components that a runtime connects: for each role an agent, scheduler, learner and explorer; and the timer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from time import perf_counter

import numpy as np

from algorithm.adapters.adapter import Adapter
from algorithm.agents.agent import Agent
from algorithm.exploration.explorer import Explorer
from algorithm.rollout import Decision, Step
from algorithm.specs import Role
from algorithm.training.batch_scheduler import BatchScheduler
from algorithm.training.cpu_time import measure_cpu_seconds
from algorithm.training.learner import Learner

STARTING = "starting"  # everything before the first action: environments, networks, a checkpoint
PHASES = (STARTING, "environment", "acting", "learning", "evaluation", "saving", "reporting")


class Timer:
    """The seconds of each phase of a run: the only clock for metrics, display and result.

    A phase is timed when it ends, by the time since the last phase ended: no phase has to be started, and every second
    is counted. `lap` takes 0.1 microseconds; a tick of two CartPole environments takes 70.

    Args:
        measure_cpu: returns the CPU seconds of the processes of the run so far.
    """

    def __init__(self, measure_cpu: Callable[[], float] = measure_cpu_seconds) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._measure_cpu, self._cpu_start = measure_cpu, measure_cpu()
        self.last_lap = perf_counter()  # time of the last lap, for callers that need no exact time

    @property
    def total(self) -> float:
        """Return the seconds of all phases, until the last lap."""
        return sum(self.seconds.values())

    @property
    def cpu_seconds(self) -> float:
        """Measure and return the CPU seconds since the timer was made, and those that were added."""
        return self._measure_cpu() - self._cpu_start

    def add_cpu_seconds(self, seconds: float) -> None:
        """Add CPU seconds of a process that `measure_cpu` does not measure."""
        self._cpu_start -= seconds

    def lap(self, phase: str) -> None:
        """Add the time since the last lap to `phase`."""
        now = perf_counter()
        self.seconds[phase] += now - self.last_lap
        self.last_lap = now

    def split_lap(self, weights: Mapping[str, float]) -> None:
        """Divide the time since the last lap between phases, in proportion to `weights`; all 0 count as learning."""
        now, total = perf_counter(), sum(weights.values())
        for phase, weight in weights.items() if total > 0 else [("learning", 1.0)]:
            self.seconds[phase] += (now - self.last_lap) * weight / (total or 1.0)
        self.last_lap = now


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

        Args:
            step: The lanes that need a decision.
            memory: The agent's memory [n, state_size] of these lanes.
        """
        if self.learner.rows_seen < self.agent.random_steps:
            return self.agent.act_uniformly(step, memory)
        return self.explorer.act(self.agent, step, memory) if self.explorer else self.agent.act(step, memory)

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
    grow_components: Callable[[str, AgentComponents, Role], AgentComponents] = lambda name, components, role: (
        components.grow(role)
    )

    @property
    def lanes_by_team(self) -> dict[str, dict[str, int]]:
        """Return, by role, the number of lanes of each team that shares its agent, or of the role."""
        roles = {name: self.adapter.roles.get(name, components.role) for name, components in self.by_role.items()}
        return {name: dict(role.count_lanes_by_team(name)) for name, role in roles.items()}

    @property
    def team_names(self) -> dict[str, list[str]]:
        """Return the names under which returns are recorded, by role: the teams that share its agent, or the role."""
        return {name: list(teams) for name, teams in self.lanes_by_team.items()}

    @property
    def has_teams(self) -> bool:
        """Return whether teams share an agent, so that their mean return does not measure its weights."""
        return any(len(names) > 1 for names in self.team_names.values())

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
