"""The agents and statistics of a scene: records of a tick, lanes of agents.

A behavior is what agents of a kind do: a behavior of ML-Agents, a policy of Godot RL Agents.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from algorithm.rollout import Step
from algorithm.specs import Role

UNFIT_FOR_FILES = re.compile(r"[^\w .-]")  # characters of the name of a role
MAX_SILENT_TICKS = 500  # ticks without a request after which an agent in an episode may lose its lane
GROUP_BITS = 32  # of the numbers of groups in a scene
# ML-Agents' numbers of the ways in which the values of a statistic are aggregated.
AVERAGE, MOST_RECENT, SUM, HISTOGRAM = range(4)

SceneStatistics = Mapping[str, Sequence[tuple[float, int]]]  # {name: values, each with its aggregation}


@dataclass(slots=True, kw_only=True)
class Batch:
    """Agents of one behavior in one scene at one tick: those that await a decision, or those whose episode ended.

    Attributes:
        agent: [n] int64, ids of the agents, in the order of the scene.
        obs: {name: [n, ...]}.
        reward: [n] float32, the agent's own and its group's rewards since its last decision.
        interrupted: [n] bool, whether the episode was truncated rather than terminated; meaningless for agents that
            await a decision.
        group: [n] int64, the number of the agent's group (`SimpleMultiAgentGroup`) in the scene; 0: no group.
        has_obs: [n] bool, whether the last observation of an episode that was truncated is known; None: all are.
    """

    agent: np.ndarray
    obs: Mapping[str, np.ndarray]
    reward: np.ndarray
    interrupted: np.ndarray
    group: np.ndarray
    has_obs: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.agent)


@dataclass
class SceneTick:
    """The agents of a scene at one tick: {behavior: (agents that await a decision, agents whose episode ended)}."""

    batches: dict[str, tuple[Batch, Batch]]
    roles: dict[str, Role] = field(default_factory=dict)  # of one agent of each behavior that is new at this tick
    statistics: SceneStatistics = field(default_factory=dict)


@dataclass(frozen=True)
class PlayerExited:
    """The reason why a scene can no longer be used; `stopped` if it was closed by a user rather than by a failure."""

    reason: str
    stopped: bool = False


@dataclass(slots=True)
class Lane:
    """The lane of an agent of a scene, and the progress of its episode."""

    number: int
    agent: int | None = None
    in_episode: bool = False  # whether a decision of the episode was made
    episode_return: float = 0.0
    last_tick: int = -1  # the last tick with a row of this agent


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
        self.lanes = [Lane(number) for number in range(first, first + count)]
        self.max_silent_ticks, self._add_lane = max_silent_ticks, add_lane
        self._tick = 0
        self.forget_episodes()

    def forget_episodes(self) -> None:
        """Truncate all episodes without a last observation, because the scene was closed or restarted."""
        self.lanes = [Lane(lane.number) for lane in self.lanes]
        self.active_lanes: Any = None  # [n] lanes of the last tick, in the order of the scene
        self._lane_of: dict[int, Lane] = {}

    def __call__(self, decisions: Batch, terminals: Batch) -> tuple[Step | None, Step | None, list[float]]:
        """Process one tick.

        A termination becomes part of the agent's next row if the agent requests a decision in the same tick, and so
        does a truncation without a last observation. Otherwise an end becomes a final row. Rewards before the first
        decision of an episode are left out, since no action caused them, and so are episodes without a decision.

        Returns:
            Final rows, which precede the others; rows that await a decision; the returns of the episodes that ended.
        """
        self._tick, self.active_lanes = self._tick + 1, None
        deciding_agents = set(decisions.agent.tolist())
        # {lane: the reward of its last row, whether it was truncated} of agents that request a decision again
        last_rewards: dict[int, tuple[float, bool]] = {}
        final_rows, returns = {}, []
        ended = zip(terminals.agent.tolist(), terminals.reward.tolist(), terminals.interrupted.tolist(), strict=True)
        has_obs = np.ones(len(terminals), bool) if terminals.has_obs is None else terminals.has_obs
        for row, (agent, reward, is_interrupted) in enumerate(ended):
            lane = self._lane_of.get(agent)
            if lane is None or not lane.in_episode:
                continue
            returns.append(lane.episode_return + reward)
            lane.in_episode, lane.episode_return, lane.last_tick = False, 0.0, self._tick
            if agent in deciding_agents and not (is_interrupted and has_obs[row]):
                last_rewards[lane.number] = reward, is_interrupted
            else:
                final_rows[lane.number] = row
        final = self._make_final_step(terminals, final_rows) if final_rows else None
        next_step = self._make_decision_step(decisions, last_rewards) if len(decisions) else None
        return final, next_step, returns

    def order_actions(self, step_lanes: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Return the actions in the order of the scene, from those [n, size] for the ascending lanes [n] of a Step."""
        return actions[np.searchsorted(step_lanes, self.active_lanes)]

    def _make_final_step(self, terminals: Batch, final_rows: Mapping[int, int]) -> Step:
        lanes = sorted(final_rows)
        rows = np.array([final_rows[lane] for lane in lanes])
        return Step(
            lane=np.array(lanes),
            obs={name: value[rows] for name, value in terminals.obs.items()},
            first=np.zeros(len(rows), bool),
            is_bootstrap_row=np.ones(len(rows), bool),
            reward=terminals.reward[rows],
            alive=terminals.interrupted[rows],
            group=self._number_groups(terminals.group[rows], np.array(lanes)),
        )

    def _make_decision_step(self, decisions: Batch, last_rewards: Mapping[int, tuple[float, bool]]) -> Step:
        lanes = self._assign_lanes(decisions.agent.tolist())
        self.active_lanes = np.array([lane.number for lane in lanes])
        first = np.array([not lane.in_episode for lane in lanes])
        reward = np.where(first, np.float32(0), decisions.reward)
        alive = np.ones(len(lanes), bool)
        for row, lane in enumerate(lanes):
            lane.in_episode = True
            lane.episode_return += float(reward[row])
            if lane.number in last_rewards:
                reward[row], alive[row] = last_rewards[lane.number]
        order = np.argsort(self.active_lanes)
        return Step(
            lane=self.active_lanes[order],
            obs={name: value[order] for name, value in decisions.obs.items()},
            first=first[order],
            is_bootstrap_row=np.zeros(len(lanes), bool),
            reward=reward[order],
            alive=alive[order],
            group=self._number_groups(decisions.group[order], self.active_lanes[order]),
        )

    def _number_groups(self, group: np.ndarray, lane: np.ndarray) -> np.ndarray:
        """Return numbers of groups [n] that are unique over all scenes; an agent without a group has its own number."""
        return np.where(group > 0, (self.lanes[0].number << GROUP_BITS) + group, -1 - lane)

    def _assign_lanes(self, agents: list[int]) -> list[Lane]:
        """Return the lane of each agent; an agent without one is assigned a lane."""
        taken = {self._lane_of[agent].number for agent in agents if agent in self._lane_of}
        for agent in agents:
            if agent not in self._lane_of:
                lane = self._find_free_lane(taken)
                if lane.agent is not None:
                    del self._lane_of[lane.agent]
                lane.agent, lane.in_episode, lane.episode_return = agent, False, 0.0
                self._lane_of[agent] = lane
                taken.add(lane.number)
            self._lane_of[agent].last_tick = self._tick
        return [self._lane_of[agent] for agent in agents]

    def _find_free_lane(self, taken: Collection[int]) -> Lane:
        lanes = [lane for lane in self.lanes if lane.number not in taken]
        idle = [lane for lane in lanes if not lane.in_episode]
        silent = [lane for lane in lanes if self._tick - lane.last_tick >= self.max_silent_ticks]
        if idle or silent:
            return min(idle or silent, key=lambda lane: lane.last_tick)
        self.lanes.append(Lane(self._add_lane(len(self.lanes))))
        return self.lanes[-1]


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
