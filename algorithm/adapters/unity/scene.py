"""The agents and statistics of a scene: records of a tick, names of behaviors and metrics, lanes of agents."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from algorithm.program import DEFAULT_ROLE
from algorithm.rollout import Step
from algorithm.specs import ActionSpec, ObsSpec

TEAM_SUFFIX = re.compile(r"\?team=(\d+)$")
MAX_SILENT_TICKS = 500  # ticks without a request after which an agent in an episode may lose its lane
NO_AGENT = -1
# Name in ML-Agents: a regular expression of the metric, and the factor between the two.
METRICS = {
    "Environment/Cumulative Reward": (r"rollout/return", 1.0),
    "Environment/Episode Length": (r"rollout/length", 1.0),
    "Policy/Extrinsic Reward": (r"rollout/return", 1.0),
    "Policy/Extrinsic Value Estimate": (r"train/value", 1.0),
    "Policy/Entropy": (r"train/entropy", 1.0),
    "Policy/Learning Rate": (r"train/(?:acer|actor_critic|policy|reactor)_learning_rate", 1.0),
    "Policy/Curiosity Reward": (r"train/curiosity_reward", 1.0),
    "Losses/Policy Loss": (r"train/policy_objective", -1.0),
    "Losses/Value Loss": (r"train/critic_loss", 2.0),  # the squared error, not half of it
}
SCENE, LESSON = "scene/", "lesson/"  # what the names of statistics start with, and then those of lessons
LESSON_NAME = "Environment/Lesson Number/"
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


def get_role_name(behavior: str) -> str:
    """Return `Name` for `Name?team=0` and `Name-team1` for `Name?team=1`, `_` for characters unfit for a file name."""
    name = TEAM_SUFFIX.sub(lambda team: "" if int(team[1]) == 0 else f"-team{team[1]}", behavior)
    return re.sub(r"[^\w .-]", "_", name)


def get_agent_name(behavior: str) -> str:
    """Return the name of the agent for all teams of a behavior: `Name` for `Name?team=0` and `Name?team=1`."""
    return get_role_name(TEAM_SUFFIX.sub("", behavior))


class LaneAssignment:
    """The lanes of the agents of one behavior in one scene, and the progress of their episodes.

    An agent keeps its lane from episode to episode. A new agent takes the first available lane in this order: a lane
    that was never used; the lane whose episode ended longest ago; the lane of an agent that sent no request for
    `max_silent_ticks` ticks, whose episode is truncated without a last observation; an added lane.
    """

    def __init__(
        self, first: int, count: int, add_lane: Callable[[int], int], max_silent_ticks: int = MAX_SILENT_TICKS
    ):
        """Create the lanes `first` to `first + count - 1`.

        Args:
            first: Number of the first lane.
            count: Number of lanes.
            add_lane: Receives the number of lanes in this scene, and returns the number of a new lane, larger than all
                others. It raises an error if no lane may be added.
            max_silent_ticks: Ticks without a request after which an agent loses its lane.
        """
        self.numbers = np.arange(first, first + count)
        self.max_silent_ticks, self._add_lane = max_silent_ticks, add_lane
        self._last_ticks = np.full(count, -1)  # the last tick with a row of each lane
        self._tick = 0
        self.forget_episodes()

    def forget_episodes(self) -> None:
        """Truncate all episodes without a last observation, because the scene was closed or restarted."""
        count = len(self.numbers)
        self.active_lanes: Any = None  # [n] lanes of the last tick, in the order of the scene
        self._lane_of: dict[int, int] = {}
        self._agents = [NO_AGENT] * count
        self._in_episode = np.zeros(count, bool)  # whether a decision of the episode was made
        self._returns = np.zeros(count)

    def __call__(self, decisions: Batch, terminals: Batch) -> tuple[Step | None, Step | None, list[float]]:
        """Process one tick.

        A termination becomes part of the agent's next row if the agent requests a decision in the same tick. Otherwise
        it becomes a final row, as every truncation does. Rewards before the first decision of an episode are left out,
        since no action caused them, and so are episodes without a decision.

        Returns:
            Final rows, which precede the others; rows that await a decision; the returns of the episodes that ended.
        """
        self._tick += 1
        terminations: dict[int, float] = {}  # {lane: last reward} of agents that request a decision again
        final, returns = self._end_episodes(decisions, terminals, terminations)
        next_step = self._make_decision_step(decisions, terminations) if len(decisions) else None
        self.active_lanes = None if next_step is None else self._decision_lanes
        return final, next_step, returns

    def order_actions(self, step_lanes: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return the actions in the order of the scene, from those [n, size] for the ascending lanes [n] of a Step."""
        return actions[np.searchsorted(step_lanes, self.active_lanes)]

    def _end_episodes(
        self, decisions: Batch, terminals: Batch, terminations: dict[int, float]
    ) -> tuple[Step | None, list[float]]:
        if not len(terminals):
            return None, []
        deciding_agents = set(decisions.agent.tolist())
        returns, final_rows = [], {}
        for row, agent in enumerate(terminals.agent.tolist()):
            lane = self._lane_of.get(agent)
            if lane is None or not self._in_episode[lane]:
                continue
            self._in_episode[lane] = False
            self._last_ticks[lane] = self._tick
            returns.append(float(self._returns[lane] + terminals.reward[row]))
            self._returns[lane] = 0
            if agent in deciding_agents and not terminals.interrupted[row]:
                terminations[lane] = float(terminals.reward[row])
            else:
                final_rows[lane] = row
        if not final_rows:
            return None, returns
        lanes = np.array(sorted(final_rows))
        rows = np.array([final_rows[lane] for lane in lanes.tolist()])
        return Step(
            lane=self.numbers[lanes],
            obs={name: value[rows] for name, value in terminals.obs.items()},
            first=np.zeros(len(rows), bool),
            is_bootstrap_row=np.ones(len(rows), bool),
            reward=terminals.reward[rows],
            alive=terminals.interrupted[rows].copy(),
        ), returns

    def _make_decision_step(self, decisions: Batch, terminations: Mapping[int, float]) -> Step:
        lanes = self._assign_lanes(decisions.agent.tolist())
        self._decision_lanes = self.numbers[lanes]
        order = np.argsort(lanes)
        lanes = lanes[order]
        first = ~self._in_episode[lanes]
        reward = np.where(first, np.float32(0), decisions.reward[order])
        self._returns[lanes] += reward
        alive = np.ones(len(lanes), bool)
        for lane, last_reward in terminations.items():
            row = int(np.searchsorted(lanes, lane))
            reward[row], alive[row] = last_reward, False
        self._in_episode[lanes] = True
        return Step(
            lane=self.numbers[lanes],
            obs={name: value[order] for name, value in decisions.obs.items()},
            first=first,
            is_bootstrap_row=np.zeros(len(lanes), bool),
            reward=reward,
            alive=alive,
        )

    def _assign_lanes(self, agents: list[int]) -> np.ndarray:
        """Return the lane of each agent; an agent without one is assigned a lane."""
        lanes = np.array([self._lane_of.get(agent, NO_AGENT) for agent in agents])
        self._last_ticks[lanes[lanes != NO_AGENT]] = self._tick
        taken = set(lanes.tolist())
        for row in np.flatnonzero(lanes == NO_AGENT):
            lanes[row] = lane = self._find_free_lane(taken)
            taken.add(lane)
            self._lane_of.pop(self._agents[lane], None)
            self._agents[lane] = agents[row]
            self._lane_of[agents[row]] = lane
            self._in_episode[lane], self._returns[lane], self._last_ticks[lane] = False, 0, self._tick
        return lanes

    def _find_free_lane(self, taken: set[int]) -> int:
        lanes = [lane for lane in range(len(self.numbers)) if lane not in taken]
        idle = [lane for lane in lanes if not self._in_episode[lane]]
        silent = [lane for lane in lanes if self._tick - self._last_ticks[lane] >= self.max_silent_ticks]
        unused = [lane for lane in idle if self._agents[lane] == NO_AGENT]
        candidates = unused or sorted(idle or silent, key=lambda lane: self._last_ticks[lane])
        return candidates[0] if candidates else self._append_lane()

    def _append_lane(self) -> int:
        """Add a lane and return its index among the lanes of this scene."""
        self.numbers = np.append(self.numbers, self._add_lane(len(self.numbers)))
        self._agents.append(NO_AGENT)
        self._in_episode, self._returns = np.append(self._in_episode, False), np.append(self._returns, 0.0)
        self._last_ticks = np.append(self._last_ticks, -1)
        return len(self.numbers) - 1


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


def rename_metrics(values: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Return metrics by their names in ML-Agents, for each role; statistics of the scene belong to all roles."""
    renamed: dict[str, dict[str, float]] = defaultdict(dict)
    for name, (expression, factor) in METRICS.items():
        for metric, value in values.items():
            if match := re.fullmatch(rf"{expression}(?:/(?P<role>.*))?", metric):
                renamed[match["role"] or DEFAULT_ROLE][name] = factor * value
    of_scene = {
        re.sub(f"^{LESSON}", LESSON_NAME, metric.removeprefix(SCENE)): value
        for metric, value in values.items()
        if metric.startswith(SCENE)
    }
    return {role: {**metrics, **of_scene} for role, metrics in renamed.items()}
