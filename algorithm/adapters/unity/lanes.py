"""From the agents of a Unity scene, which come, ask and go as they like, to lanes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from algorithm.rollout import Step

PATIENCE = 500  # ticks that an agent may be silent in the middle of an episode before another may have its lane
NOBODY = -1


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


class Crowded(Exception):
    """There are more agents than lanes, and no lane may be added."""


def add_none(lanes: int) -> int:
    """Add no lane: raise Crowded."""
    raise Crowded


class Lanes:
    """The lane of each agent of one behavior in one scene, and the progress of its episode.

    At first there are the lanes `begin` ... `begin + count - 1`. An agent keeps its lane from episode to episode. A new
    agent takes a lane that was never used, or else the one whose episode ended longest ago, or else that of an agent
    that has been silent for `patience` ticks: the episode of the latter is cut, and its last observation not known.
    If no lane is free, one is added: `add` receives the number of lanes in this scene and returns the number of the
    new lane, larger than all others, or raises Crowded.
    """

    def __init__(self, begin: int, count: int, patience: int = PATIENCE, add: Callable[[int], int] = add_none):
        self.numbers = np.arange(begin, begin + count)
        self.patience, self._add = patience, add
        self.asked: Any = None  # [n] the lanes of the last tick, in the order of the scene
        self._returns = np.zeros(count)
        self._seen = np.full(count, -1)  # the tick at which each lane was shown last
        self._tick = 0
        self._forget_agents()

    @property
    def count(self) -> int:
        """Return the number of lanes in this scene."""
        return len(self.numbers)

    def lose(self) -> None:
        """The scene is gone, or begins anew: what has not ended is cut, and its last observations are not known."""
        self.asked = None
        self._forget_agents()

    def __call__(self, decided: Batch, ended: Batch) -> tuple[Step | None, Step | None, list[float]]:
        """One tick: final rows, to be shown before; rows that await a decision; returns of episodes that ended.

        A death is told by the agent's next row where it asks again in this tick, otherwise by a final row, as a cut is.
        What an agent earned before the first decision of an episode follows from nothing that was decided: it is left
        out, as is an episode without a decision. Raises Crowded where there are more agents than lanes.
        """
        self._tick += 1
        deaths: dict[int, float] = {}  # lane: reward, of those that ask again
        final, returns = self._end(decided, ended, deaths)
        following = self._ask(decided, deaths) if len(decided) else None
        self.asked = None if following is None else self._places
        return final, following, returns

    def in_order(self, step_lanes: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """The part of a role's `actions` [n, size] that is for this scene, in the order of the scene.

        `step_lanes` [n], ascending, are those that the actions are for.
        """
        return actions[np.searchsorted(step_lanes, self.asked)]

    def _forget_agents(self) -> None:
        self._lane_of: dict[int, int] = {}
        self._owner = [NOBODY] * self.count
        self._open = np.zeros(self.count, bool)  # an episode of which a decision was made
        self._returns[:] = 0

    def _end(self, decided: Batch, ended: Batch, deaths: dict[int, float]) -> tuple[Step | None, list[float]]:
        if not len(ended):
            return None, []
        asking = set(decided.agent.tolist())
        returns, shown = [], {}
        for row, agent in enumerate(ended.agent.tolist()):
            lane = self._lane_of.get(agent)
            if lane is None or not self._open[lane]:
                continue
            self._open[lane] = False
            self._seen[lane] = self._tick
            returns.append(float(self._returns[lane] + ended.reward[row]))
            self._returns[lane] = 0
            if agent in asking and not ended.interrupted[row]:
                deaths[lane] = float(ended.reward[row])
            else:
                shown[lane] = row
        if not shown:
            return None, returns
        lanes = np.array(sorted(shown))
        rows = np.array([shown[lane] for lane in lanes.tolist()])
        every, none = np.ones(len(rows), bool), np.zeros(len(rows), bool)
        obs = {name: value[rows] for name, value in ended.obs.items()}
        return Step(self.numbers[lanes], obs, none, every, ended.reward[rows], ended.interrupted[rows].copy()), returns

    def _ask(self, decided: Batch, deaths: Mapping[int, float]) -> Step:
        lanes = self._assign(decided.agent.tolist())
        self._places = self.numbers[lanes]
        order = np.argsort(lanes)
        lanes = lanes[order]
        first = ~self._open[lanes]
        reward = np.where(first, np.float32(0), decided.reward[order])
        self._returns[lanes] += reward
        alive = np.ones(len(lanes), bool)
        for lane, earned in deaths.items():
            row = int(np.searchsorted(lanes, lane))
            reward[row], alive[row] = earned, False
        self._open[lanes] = True
        obs = {name: value[order] for name, value in decided.obs.items()}
        return Step(self.numbers[lanes], obs, first, np.zeros(len(lanes), bool), reward, alive)

    def _assign(self, agents: list[int]) -> np.ndarray:
        """The lane of each agent; those that have none yet are given one."""
        lanes = np.array([self._lane_of.get(agent, NOBODY) for agent in agents])
        self._seen[lanes[lanes != NOBODY]] = self._tick
        taken = set(lanes.tolist())
        for row in np.flatnonzero(lanes == NOBODY):
            lanes[row] = lane = self._free(taken)
            taken.add(lane)
            self._lane_of.pop(self._owner[lane], None)
            self._owner[lane] = agents[row]
            self._lane_of[agents[row]] = lane
            self._open[lane], self._returns[lane], self._seen[lane] = False, 0, self._tick
        return lanes

    def _free(self, taken: set[int]) -> int:
        lanes = [lane for lane in range(self.count) if lane not in taken]
        ended = [lane for lane in lanes if not self._open[lane]]
        silent = [lane for lane in lanes if self._tick - self._seen[lane] >= self.patience]
        found = [lane for lane in ended if self._owner[lane] == NOBODY] or sorted(ended, key=self._when)
        found = found or sorted(silent, key=self._when)
        return found[0] if found else self._one_more()

    def _one_more(self) -> int:
        """Add a lane. Return its place among the lanes of this scene."""
        self.numbers = np.append(self.numbers, self._add(self.count))
        self._owner.append(NOBODY)
        self._open, self._returns = np.append(self._open, False), np.append(self._returns, 0.0)
        self._seen = np.append(self._seen, -1)
        return self.count - 1

    def _when(self, lane: int) -> int:
        return int(self._seen[lane])
