"""From the agents of a Unity scene, which come, ask and go as they like, to lanes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from algorithm.rollout import Step

MAX_SILENT_TICKS = 500  # ticks that an agent may be silent in the middle of an episode before another may have its lane
NO_AGENT = -1


@dataclass(slots=True)
class Batch:
    """Agents of one behavior in one scene at one tick: those that await a decision, or those whose episode ended.

    `reward` is what came since each agent's last decision, that of its group included. `interrupted` episodes were cut,
    others are over; it is not looked at where a decision is awaited.
    """

    agent: np.ndarray  # [n] int64, in the order of the scene
    obs: Mapping[str, np.ndarray]  # {name: [n, ...]}
    reward: np.ndarray  # [n] float32
    interrupted: np.ndarray  # [n] bool

    def __len__(self) -> int:
        return len(self.agent)


class TooManyAgents(Exception):
    """There are more agents than lanes, and no lane may be added."""


def reject_lane(lanes: int) -> int:
    """Add no lane: raise Crowded."""
    raise TooManyAgents


class LaneAssignment:
    """The lane of each agent of one behavior in one scene, and the progress of its episode.

    At first there are the lanes `first` ... `begin + count - 1`. An agent keeps its lane from episode to episode. A new
    agent takes a lane that was never used, or else the one whose episode ended longest ago, or else that of an agent
    that has been silent for `max_silent_ticks` ticks: the episode of the latter is cut, and its last observation not known.
    If no lane is free, one is added: `add_lane` receives the number of lanes in this scene and returns the number of the
    new lane, larger than all others, or raises Crowded.
    """

    def __init__(
        self,
        first: int,
        count: int,
        max_silent_ticks: int = MAX_SILENT_TICKS,
        add_lane: Callable[[int], int] = reject_lane,
    ):
        self.numbers = np.arange(first, first + count)
        self.max_silent_ticks, self._add_lane = max_silent_ticks, add_lane
        self.active_lanes: Any = None  # [n] the lanes of the last tick, in the order of the scene
        self._returns = np.zeros(count)
        self._last_ticks = np.full(count, -1)  # the tick at which each lane was shown last
        self._tick = 0
        self._forget_agents()

    @property
    def count(self) -> int:
        """Return the number of lanes in this scene."""
        return len(self.numbers)

    def forget_episodes(self) -> None:
        """The scene is gone, or begins anew: what has not ended is cut, and its last observations are not known."""
        self.active_lanes = None
        self._forget_agents()

    def __call__(self, decisions: Batch, terminals: Batch) -> tuple[Step | None, Step | None, list[float]]:
        """One tick: final rows, to be shown before; rows that await a decision; returns of episodes that ended.

        A death is told by the agent's next row where it asks again in this tick, otherwise by a final row, as a cut is.
        What an agent earned before the first decision of an episode follows from nothing that was decided: it is left
        out, as is an episode without a decision. Raises Crowded where there are more agents than lanes.
        """
        self._tick += 1
        terminations: dict[int, float] = {}  # lane: reward, of those that ask again
        final, returns = self._end_episodes(decisions, terminals, terminations)
        next_step = self._make_decision_step(decisions, terminations) if len(decisions) else None
        self.active_lanes = None if next_step is None else self._decision_lanes
        return final, next_step, returns

    def order_actions(self, step_lanes: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """The part of a role's `actions` [n, size] that is for this scene, in the order of the scene.

        `step_lanes` [n], ascending, are those that the actions are for.
        """
        return actions[np.searchsorted(step_lanes, self.active_lanes)]

    def _forget_agents(self) -> None:
        self._lane_of: dict[int, int] = {}
        self._agents = [NO_AGENT] * self.count
        self._in_episode = np.zeros(self.count, bool)  # an episode of which a decision was made
        self._returns[:] = 0

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
        all_true, all_false = np.ones(len(rows), bool), np.zeros(len(rows), bool)
        obs = {name: value[rows] for name, value in terminals.obs.items()}
        return Step(
            lane=self.numbers[lanes],
            obs=obs,
            first=all_false,
            is_bootstrap_row=all_true,
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
        obs = {name: value[order] for name, value in decisions.obs.items()}
        return Step(
            lane=self.numbers[lanes],
            obs=obs,
            first=first,
            is_bootstrap_row=np.zeros(len(lanes), bool),
            reward=reward,
            alive=alive,
        )

    def _assign_lanes(self, agents: list[int]) -> np.ndarray:
        """The lane of each agent; those that have none yet are given one."""
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
        lanes = [lane for lane in range(self.count) if lane not in taken]
        idle = [lane for lane in lanes if not self._in_episode[lane]]
        silent = [lane for lane in lanes if self._tick - self._last_ticks[lane] >= self.max_silent_ticks]
        candidates = [lane for lane in idle if self._agents[lane] == NO_AGENT] or sorted(idle, key=self._get_last_tick)
        candidates = candidates or sorted(silent, key=self._get_last_tick)
        return candidates[0] if candidates else self._append_lane()

    def _append_lane(self) -> int:
        """Add a lane. Return its place among the lanes of this scene."""
        self.numbers = np.append(self.numbers, self._add_lane(self.count))
        self._agents.append(NO_AGENT)
        self._in_episode, self._returns = np.append(self._in_episode, False), np.append(self._returns, 0.0)
        self._last_ticks = np.append(self._last_ticks, -1)
        return self.count - 1

    def _get_last_tick(self, lane: int) -> int:
        return int(self._last_ticks[lane])
