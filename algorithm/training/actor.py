"""Collecting experience: one column per lane, handed over as rollouts of a fixed number of columns."""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote

import numpy as np

from algorithm.rollout import Decision, Rollout, Step
from algorithm.training.components import Parts, Team
from algorithm.training.episode_returns import Scores, places
from algorithm.training.sanitize import Screen

Arrays = dict[str, np.ndarray]
SIMULATOR = "simulator"  # in an actor's state: where the episodes stand, as JSON
# Slots for each lane: waiting ones never exceed 2 lanes - 1 (a tick may complete one per lane), and each lane
# fills one more.
SLOTS = 3
# What columns consist of, beside what has a width or a length of its own.
OF_ROWS = ("first", "reward", "alive", "sample")  # [rows + 1, slots]
OF_SLOTS = ("memory_at_start", "joined", "version", "lane")
OF_LANES = ("row", "slot", "memory", "shown")
STATE = (*OF_ROWS, *OF_SLOTS, *OF_LANES)


@dataclass(frozen=True)
class Episode:
    """A finished episode: the undiscounted raw return and the executed decisions.

    `team` has the return where several share the agent of the role.
    """

    role: str
    lane: int
    reward: float
    length: int
    team: str | None = None


class Actor:
    """Acts in all lanes of all roles with the agents of `parts`."""

    def __init__(self, parts: Parts, seed: int):
        self.parts = parts
        self.env_steps = 0
        self.episodes: deque[Episode] = deque()  # finished and not yet taken by whoever counts them
        self._columns: dict[str, Columns] = {}
        self._steps = parts.adapter.reset(seed)
        self._between = True  # two ticks: what was decided has been executed

    def collect(self) -> list[tuple[str, Rollout]]:
        """One tick of the simulator for all roles; the rollouts that it completed."""
        rollouts = self.act()
        self.follow()
        return rollouts

    def act(self) -> list[tuple[str, Rollout]]:
        """Decide in all lanes, and the rollouts that this completed. A simulator of its own begins with the actions.

        Then comes `follow`, and in between whatever takes time.
        """
        rollouts, actions = [], {}
        self._between = False
        for role, step in self._steps.items():
            team = self.parts.team(role)
            columns = self._columns_of(role, team)
            if self.parts.adapter.roles[role].lanes > columns.lanes:
                team = self.parts.grow(role)
                columns.grow(team)
            columns.shown[places(step, columns.lanes)] = True
            step, stored = columns.screen(step)
            memory = step.recall(columns.memory)
            chooser = team.explorer
            decision = chooser.choose(team.agent, step, memory) if chooser else team.agent.act(step, memory)
            actions[role] = decision.action
            if stored is not None:
                step, decision = step.take(stored), decision.take(stored)
            rollouts += [(role, rollout) for rollout in columns.record(step, decision)]
            self._count(role, columns, step)
        self.parts.adapter.send(actions)
        self.parts.clock.book("acting")
        return rollouts

    def follow(self) -> None:
        """Take in what came of the actions."""
        self._steps = self.parts.adapter.receive()
        self._between = True
        self.parts.clock.book("environment")

    @property
    def shown(self) -> Mapping[str, np.ndarray]:
        """Return which lanes [lanes] of each role had a row in a Step since this was last cleared."""
        return {role: columns.shown for role, columns in self._columns.items()}

    def state(self) -> Arrays | None:
        """Every unfinished column and what the simulator shows, to go on inside episodes.

        None where the simulator cannot be put back, or was interrupted in the middle of a tick: then what is
        unfinished is lost, and the columns of new episodes are not joined to what was handed over.
        """
        simulator = self.parts.adapter.state() if self._between else None
        if simulator is None:
            return None
        arrays = {SIMULATOR: np.array(json.dumps(simulator))}
        for role, columns in self._columns.items():
            arrays |= {f"{quote(role, safe='')}/columns/{name}": value for name, value in columns.state().items()}
        for role, step in self._steps.items():
            arrays |= {f"{quote(role, safe='')}/step/{name}": value for name, value in step.arrays().items()}
        return arrays

    def restore(self, state: Arrays) -> None:
        """Take over what `state` gave. Raises ValueError where it was of other roles or lanes."""
        self.parts.adapter.restore(json.loads(str(state[SIMULATOR])))
        parts: dict[tuple[str, str], Arrays] = defaultdict(dict)
        for path, value in state.items():
            if path != SIMULATOR:
                role, kind, name = path.split("/", 2)
                parts[unquote(role), kind][name] = value
        self._columns, self._steps = {}, {}
        for (role, kind), arrays in parts.items():
            if kind == "columns":
                self._columns_of(role, self.parts.team(role)).restore(arrays)
            else:
                self._steps[role] = Step.of(arrays)

    def _columns_of(self, role: str, team: Team) -> Columns:
        if role not in self._columns:
            self._columns[role] = Columns(role, team)
        return self._columns[role]

    def _count(self, role: str, columns: Columns, step: Step) -> None:
        executed = len(step.lane) - int(np.count_nonzero(step.final))
        self.env_steps += executed
        for lane, reward, length in columns.scores.add(step):
            team = self.parts.adapter.roles[role].team(lane)
            self.episodes.append(Episode(role, lane, reward, length, team))


class Columns:
    """The rows of one role's lanes until they are handed over.

    A pool of slots holds T rows and the observation behind them. A lane fills its slot whenever it is asked for a
    decision; a full slot waits until as many are full as there are lanes, while its lane goes on in another.
    """

    def __init__(self, name: str, team: Team):
        role, agent = team.role, team.agent
        self.team = team
        self.rows = agent.schedule.rollout_length
        self.lanes = role.lanes
        slots = SLOTS * self.lanes
        shape = (self.rows + 1, slots)
        self.obs = {name: np.zeros((*shape, *spec.shape), spec.dtype) for name, spec in role.obs_specs.items()}
        self.first = np.zeros(shape, bool)
        # Row t + 1 holds the consequence of row t, as a Step brings it.
        self.reward = np.zeros(shape, np.float32)
        self.alive = np.zeros(shape, bool)
        self.sample = np.zeros((*shape, role.action_spec.size), np.float32)
        self.behavior: np.ndarray | None = None  # its width is known with the first decision
        self.memory_at_start = np.zeros((slots, agent.state), np.float32)
        self.joined = np.zeros(slots, bool)
        self.version = np.zeros(slots, np.int64)
        self.lane = np.zeros(slots, np.int64)

        self.row = np.zeros(self.lanes, np.int64)  # where each lane writes next
        self.slot = np.arange(self.lanes)
        self.lane[: self.lanes] = self.slot
        self.free = deque(range(self.lanes, slots))
        self.waiting: deque[int] = deque()
        self.memory = np.zeros((self.lanes, agent.state), np.float32)
        self.shown = np.zeros(self.lanes, bool)
        self.scores = Scores(self.lanes)
        self.screen = Screen(name, self.scores, role.action_spec.branches)

    def grow(self, team: Team) -> None:
        """Add the new lanes of `team`, each with an empty slot. Existing lanes keep their slots and rows."""
        before, self.team, self.lanes = self.lanes, team, team.role.lanes
        lanes, slots = self.lanes - before, SLOTS * (self.lanes - before)
        for name in OF_ROWS:
            setattr(self, name, _padded(getattr(self, name), slots, axis=1))
        self.obs = {name: _padded(value, slots, axis=1) for name, value in self.obs.items()}
        if self.behavior is not None:
            self.behavior = _padded(self.behavior, slots, axis=1)
        for names, more in ((OF_SLOTS, slots), (OF_LANES, lanes)):
            for name in names:
                setattr(self, name, _padded(getattr(self, name), more))
        self.free.extend(range(SLOTS * before, SLOTS * self.lanes))
        for lane in range(before, self.lanes):
            self.slot[lane] = slot = self.free.popleft()
            self.lane[slot], self.joined[slot] = lane, False
        self.scores.grow(self.lanes)
        self.screen.grow(self.lanes)

    def record(self, step: Step, decision: Decision) -> list[Rollout]:
        """Enter one row for each lane of `step`; the rollouts that are now complete."""
        if self.behavior is None:
            self.behavior = np.zeros((*self.first.shape, decision.behavior.shape[-1]), np.float32)
        lane = places(step, self.lanes)
        row, slot = self.row[lane], self.slot[lane]
        self._show(row, slot, step)
        full = row == self.rows
        if full.any():
            self._continue(step.lane[full])
            row, slot = self.row[lane], self.slot[lane]
            self._show(row, slot, step)
        begun = row == 0
        if begun.any():
            self._begin(step.lane[begun], slot[begun])
        self.sample[row, slot] = decision.sample
        self.behavior[row, slot] = decision.behavior
        self.memory[lane] = decision.memory
        self.row[lane] = row + 1
        return self._complete()

    def state(self) -> Arrays:
        """Everything, as named arrays."""
        arrays = {name: getattr(self, name) for name in STATE} | {f"obs/{name}": v for name, v in self.obs.items()}
        if self.behavior is not None:
            arrays["behavior"] = self.behavior
        lines = {"free": np.array(self.free, np.int64), "waiting": np.array(self.waiting, np.int64)}
        scores = {f"scores/{name}": value for name, value in self.scores.state().items()}
        return {**arrays, **lines, **scores, **self.screen.state()}

    def restore(self, state: Arrays) -> None:
        """Take over what `state` gave. Raises ValueError where it was of other lanes."""
        if state["first"].shape != self.first.shape:
            raise ValueError(f"columns of {state['first'].shape} rows and slots; this run has {self.first.shape}")
        for name in STATE:
            setattr(self, name, state[name].copy())
        self.obs = {name: state[f"obs/{name}"].copy() for name in self.obs}
        self.behavior = state["behavior"].copy() if "behavior" in state else None
        self.free, self.waiting = deque(state["free"].tolist()), deque(state["waiting"].tolist())
        self.scores.restore({name: state[f"scores/{name}"] for name in self.scores.state()})
        self.screen.restore(state)

    def _show(self, row: np.ndarray, slot: np.ndarray, step: Step) -> None:
        for name, value in self.obs.items():
            value[row, slot] = step.obs[name]
        self.first[row, slot] = step.first
        self.reward[row, slot] = step.reward
        self.alive[row, slot] = step.alive

    def _continue(self, lanes: np.ndarray) -> None:
        """Put the full slots of `lanes` in line and give each lane an empty one, joined to what it had."""
        for lane in lanes.tolist():
            self.waiting.append(int(self.slot[lane]))
            slot = self.free.popleft()
            self.slot[lane], self.row[lane] = slot, 0
            self.lane[slot], self.joined[slot] = lane, True

    def _begin(self, lane: np.ndarray, slot: np.ndarray) -> None:
        self.memory_at_start[slot] = self.memory[lane]
        self.version[slot] = self.team.learner.updates

    def _complete(self) -> list[Rollout]:
        rollouts = []
        while len(self.waiting) >= self.lanes:
            slots = np.array([self.waiting.popleft() for _ in range(self.lanes)])
            rollouts.append(self._rollout(slots))
            self.free.extend(slots.tolist())
        return rollouts

    def _rollout(self, slots: np.ndarray) -> Rollout:
        return Rollout(
            obs={name: value[:, slots] for name, value in self.obs.items()},
            first=self.first[:, slots],
            sample=self.sample[:-1, slots],
            reward=self.reward[1:, slots],
            alive=self.alive[1:, slots],
            behavior=self.behavior[:-1, slots],
            memory=self.memory_at_start[slots],
            lane=self.lane[slots],
            joined=self.joined[slots],
            weight=np.ones(len(slots), np.float32),
            index=np.full(len(slots), -1),
            version=self.version[slots],
        )


def _padded(array: np.ndarray, more: int, axis: int = 0) -> np.ndarray:
    """Return a copy with `more` zeros appended along an axis."""
    return np.pad(array, [(0, more * (axis == each)) for each in range(array.ndim)])
