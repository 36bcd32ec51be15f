"""The records that the process of a scene sends to the trainer, and the names of its behaviors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from algorithm.specs import ActionSpec, ObsSpec

TEAM_SUFFIX = re.compile(r"\?team=(\d+)$")
# ML-Agents' numbers of the ways in which the values of a statistic are aggregated.
AVERAGE, MOST_RECENT, SUM, HISTOGRAM = range(4)

SceneStatistics = Mapping[str, Sequence[tuple[float, int]]]  # {name: values, each with its aggregation}


@dataclass(frozen=True)
class AgentSpecs:
    """The observations and actions of the agents of one behavior."""

    obs_specs: dict[str, ObsSpec]
    action_spec: ActionSpec


@dataclass(slots=True, kw_only=True)
class Batch:
    """Agents of one behavior in one scene at one tick: those that await a decision, or those whose episode ended.

    Attributes:
        agent: [n] int64, ids of the agents, in the order of the scene.
        obs: {name: [n, ...]}.
        reward: [n] float32, the agent's own and its group's rewards since its last decision.
        interrupted: [n] bool, whether the episode was truncated rather than terminated; meaningless for agents that
            await a decision.
    """

    agent: np.ndarray
    obs: Mapping[str, np.ndarray]
    reward: np.ndarray
    interrupted: np.ndarray

    def __len__(self) -> int:
        return len(self.agent)


@dataclass
class SceneTick:
    """The agents of a scene at one tick: {behavior: (agents that await a decision, agents whose episode ended)}."""

    batches: dict[str, tuple[Batch, Batch]]
    agent_specs: dict[str, AgentSpecs] = field(default_factory=dict)  # of behaviors that are new at this tick
    statistics: SceneStatistics = field(default_factory=dict)


@dataclass(frozen=True)
class PlayerExited:
    """The reason why a scene can no longer be used; `stopped` if it was closed by a user rather than by a failure."""

    reason: str
    stopped: bool = False


class StatisticsCollector:
    """A collector of the statistics that scenes record (ML-Agents' StatsRecorder), over all environments and ticks."""

    def __init__(self) -> None:
        self._values: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, statistics: SceneStatistics) -> None:
        """Add the statistics of one scene at one tick."""
        for name, values in statistics.items():
            for value, aggregation in values:
                total = 0.0 if aggregation == MOST_RECENT else self._values.get(name, 0.0)
                self._values[name] = total + value
                self._counts[name] = self._counts.get(name, 0) + 1 if aggregation in (AVERAGE, HISTOGRAM) else 1

    def take(self) -> dict[str, float]:
        """Return one number for each statistic that was added since the last call; a histogram becomes its mean."""
        means = {name: value / self._counts[name] for name, value in self._values.items()}
        self._values.clear()
        self._counts.clear()
        return means


def get_role_name(behavior: str) -> str:
    """Return `Name` for `Name?team=0` and `Name-team1` for `Name?team=1`, `_` for characters unfit for a file name."""
    name = TEAM_SUFFIX.sub(lambda team: "" if int(team[1]) == 0 else f"-team{team[1]}", behavior)
    return re.sub(r"[^\w .-]", "_", name)


def get_agent_name(behavior: str) -> str:
    """Return the name of the agent for all teams of a behavior: `Name` for `Name?team=0` and `Name?team=1`."""
    return get_role_name(TEAM_SUFFIX.sub("", behavior))
