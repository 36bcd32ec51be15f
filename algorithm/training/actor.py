"""Collecting experience: one column per lane, handed over as rollouts of a fixed number of columns."""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, unquote

import numpy as np

from algorithm.rollout import Decision, Rollout, Step
from algorithm.training.components import AgentComponents, TrainingComponents
from algorithm.training.episode_returns import EpisodeReturns, get_lane_index
from algorithm.training.sanitize import StepSanitizer

Arrays = dict[str, np.ndarray]
SIMULATOR_KEY = "simulator"  # in an actor's state: where the episodes stand, as JSON
# Slots for each lane: waiting ones never exceed 2 lanes - 1 (a tick may complete one per lane), and each lane
# fills one more.
SLOTS_PER_LANE = 3
# What columns consist of, beside what has a width or a length of its own.
ROW_ARRAYS = ("first", "reward", "alive", "sample")  # [rows + 1, slots]
SLOT_ARRAYS = ("memory_at_start", "joined", "version", "lane")
LANE_ARRAYS = ("row", "slot", "memory", "active")
STATE_ARRAYS = (*ROW_ARRAYS, *SLOT_ARRAYS, *LANE_ARRAYS)


@dataclass(frozen=True)
class Episode:
    """A finished episode: the undiscounted raw return and the executed decisions.

    `team` has the return where several share the agent of the role.
    """

    role: str
    lane: int
    episode_return: float
    length: int
    team: str | None = None


class Actor:
    """Acts in all lanes of all roles with the agents of `training`."""

    def __init__(self, training: TrainingComponents, seed: int):
        self.training = training
        self.env_steps = 0
        self.episodes: deque[Episode] = deque()  # finished and not yet taken by whoever counts them
        self._buffers: dict[str, RolloutBuffer] = {}
        self._steps = training.adapter.reset(seed)
        self._is_between_ticks = True  # two ticks: what was decided has been executed

    def collect(self) -> list[tuple[str, Rollout]]:
        """One tick of the simulator for all roles; the rollouts that it completed."""
        rollouts = self.act()
        self.receive()
        return rollouts

    def act(self) -> list[tuple[str, Rollout]]:
        """Decide in all lanes, and the rollouts that this completed. A simulator of its own begins with the actions.

        Then comes `receive`, and in between whatever takes time.
        """
        rollouts, actions = [], {}
        self._is_between_ticks = False
        for role, step in self._steps.items():
            components = self.training.get(role)
            buffer = self._get_buffer(role, components)
            if self.training.adapter.roles[role].lanes > buffer.lanes:
                components = self.training.grow(role)
                buffer.grow(components)
            buffer.active[get_lane_index(step, buffer.lanes)] = True
            step, stored = buffer.sanitizer(step)
            memory = step.select_memory(buffer.memory)
            explorer = components.explorer
            decision = explorer.act(components.agent, step, memory) if explorer else components.agent.act(step, memory)
            actions[role] = decision.action
            if stored is not None:
                step, decision = step.take(stored), decision.take(stored)
            rollouts += [(role, rollout) for rollout in buffer.record(step, decision)]
            self._count_episodes(role, buffer, step)
        self.training.adapter.send(actions)
        self.training.timer.lap("acting")
        return rollouts

    def receive(self) -> None:
        """Take in what came of the actions."""
        self._steps = self.training.adapter.receive()
        self._is_between_ticks = True
        self.training.timer.lap("environment")

    @property
    def active_lanes(self) -> Mapping[str, np.ndarray]:
        """Return which lanes [lanes] of each role had a row in a Step since this was last cleared."""
        return {role: buffer.active for role, buffer in self._buffers.items()}

    def state(self) -> Arrays | None:
        """Every unfinished column and what the simulator shows, to go on inside episodes.

        None where the simulator cannot be put back, or was interrupted in the middle of a tick: then what is
        unfinished is lost, and the columns of new episodes are not joined to what was handed over.
        """
        simulator = self.training.adapter.state() if self._is_between_ticks else None
        if simulator is None:
            return None
        arrays = {SIMULATOR_KEY: np.array(json.dumps(simulator))}
        for role, buffer in self._buffers.items():
            arrays |= {f"{quote(role, safe='')}/columns/{name}": value for name, value in buffer.state().items()}
        for role, step in self._steps.items():
            arrays |= {f"{quote(role, safe='')}/step/{name}": value for name, value in step.to_arrays().items()}
        return arrays

    def restore(self, state: Arrays) -> None:
        """Take over what `state` gave. Raises ValueError where it was of other roles or lanes."""
        self.training.adapter.restore(json.loads(str(state[SIMULATOR_KEY])))
        parts: dict[tuple[str, str], Arrays] = defaultdict(dict)
        for path, value in state.items():
            if path != SIMULATOR_KEY:
                role, kind, name = path.split("/", 2)
                parts[unquote(role), kind][name] = value
        self._buffers, self._steps = {}, {}
        for (role, kind), arrays in parts.items():
            if kind == "columns":
                self._get_buffer(role, self.training.get(role)).restore(arrays)
            else:
                self._steps[role] = Step.from_arrays(arrays)

    def _get_buffer(self, role: str, components: AgentComponents) -> RolloutBuffer:
        if role not in self._buffers:
            self._buffers[role] = RolloutBuffer(role, components)
        return self._buffers[role]

    def _count_episodes(self, role: str, buffer: RolloutBuffer, step: Step) -> None:
        executed = len(step.lane) - int(np.count_nonzero(step.is_bootstrap_row))
        self.env_steps += executed
        for lane, episode_return, length in buffer.episode_returns.add(step):
            team = self.training.adapter.roles[role].find_team(lane)
            self.episodes.append(Episode(role, lane, episode_return, length, team))


class RolloutBuffer:
    """The rows of one role's lanes until they are handed over.

    A pool of slots holds T rows and the observation behind them. A lane fills its slot whenever it is asked for a
    decision; a full slot waits until as many are full as there are lanes, while its lane goes on in another.
    """

    def __init__(self, name: str, components: AgentComponents):
        role, agent = components.role, components.agent
        self.components = components
        self.n_rows = agent.schedule.rollout_length
        self.lanes = role.lanes
        slots = SLOTS_PER_LANE * self.lanes
        shape = (self.n_rows + 1, slots)
        self.obs = {name: np.zeros((*shape, *spec.shape), spec.dtype) for name, spec in role.obs_specs.items()}
        self.first = np.zeros(shape, bool)
        # Row t + 1 holds the consequence of row t, as a Step brings it.
        self.reward = np.zeros(shape, np.float32)
        self.alive = np.zeros(shape, bool)
        self.sample = np.zeros((*shape, role.action_spec.size), np.float32)
        self.behavior: np.ndarray | None = None  # its width is known with the first decision
        self.memory_at_start = np.zeros((slots, agent.state_size), np.float32)
        self.joined = np.zeros(slots, bool)
        self.version = np.zeros(slots, np.int64)
        self.lane = np.zeros(slots, np.int64)

        self.row = np.zeros(self.lanes, np.int64)  # where each lane writes next
        self.slot = np.arange(self.lanes)
        self.lane[: self.lanes] = self.slot
        self.free_slots = deque(range(self.lanes, slots))
        self.full_slots: deque[int] = deque()
        self.memory = np.zeros((self.lanes, agent.state_size), np.float32)
        self.active = np.zeros(self.lanes, bool)
        self.episode_returns = EpisodeReturns(self.lanes)
        self.sanitizer = StepSanitizer(name, self.episode_returns, role.action_spec.branches)

    def grow(self, components: AgentComponents) -> None:
        """Add the new lanes of `components`, each with an empty slot. Existing lanes keep their slots and rows."""
        old_lanes, self.components, self.lanes = self.lanes, components, components.role.lanes
        lanes, slots = self.lanes - old_lanes, SLOTS_PER_LANE * (self.lanes - old_lanes)
        for name in ROW_ARRAYS:
            setattr(self, name, _pad(getattr(self, name), slots, axis=1))
        self.obs = {name: _pad(value, slots, axis=1) for name, value in self.obs.items()}
        if self.behavior is not None:
            self.behavior = _pad(self.behavior, slots, axis=1)
        for names, added in ((SLOT_ARRAYS, slots), (LANE_ARRAYS, lanes)):
            for name in names:
                setattr(self, name, _pad(getattr(self, name), added))
        self.free_slots.extend(range(SLOTS_PER_LANE * old_lanes, SLOTS_PER_LANE * self.lanes))
        for lane in range(old_lanes, self.lanes):
            self.slot[lane] = slot = self.free_slots.popleft()
            self.lane[slot], self.joined[slot] = lane, False
        self.episode_returns.grow(self.lanes)
        self.sanitizer.grow(self.lanes)

    def record(self, step: Step, decision: Decision) -> list[Rollout]:
        """Enter one row for each lane of `step`; the rollouts that are now complete."""
        if self.behavior is None:
            self.behavior = np.zeros((*self.first.shape, decision.behavior.shape[-1]), np.float32)
        lane = get_lane_index(step, self.lanes)
        row, slot = self.row[lane], self.slot[lane]
        self._write_step(row, slot, step)
        full = row == self.n_rows
        if full.any():
            self._start_next_slots(step.lane[full])
            row, slot = self.row[lane], self.slot[lane]
            self._write_step(row, slot, step)
        starting = row == 0
        if starting.any():
            self._start_rollouts(step.lane[starting], slot[starting])
        self.sample[row, slot] = decision.raw_action
        self.behavior[row, slot] = decision.behavior
        self.memory[lane] = decision.memory
        self.row[lane] = row + 1
        return self._take_rollouts()

    def state(self) -> Arrays:
        """Everything, as named arrays."""
        arrays = {name: getattr(self, name) for name in STATE_ARRAYS} | {
            f"obs/{name}": v for name, v in self.obs.items()
        }
        if self.behavior is not None:
            arrays["behavior"] = self.behavior
        queues = {"free": np.array(self.free_slots, np.int64), "waiting": np.array(self.full_slots, np.int64)}
        episode_returns = {f"scores/{name}": value for name, value in self.episode_returns.state().items()}
        return {**arrays, **queues, **episode_returns, **self.sanitizer.state()}

    def restore(self, state: Arrays) -> None:
        """Take over what `state` gave. Raises ValueError where it was of other lanes."""
        if state["first"].shape != self.first.shape:
            raise ValueError(f"columns of {state['first'].shape} rows and slots; this run has {self.first.shape}")
        for name in STATE_ARRAYS:
            setattr(self, name, state[name].copy())
        self.obs = {name: state[f"obs/{name}"].copy() for name in self.obs}
        self.behavior = state["behavior"].copy() if "behavior" in state else None
        self.free_slots, self.full_slots = deque(state["free"].tolist()), deque(state["waiting"].tolist())
        self.episode_returns.restore({name: state[f"scores/{name}"] for name in self.episode_returns.state()})
        self.sanitizer.restore(state)

    def _write_step(self, row: np.ndarray, slot: np.ndarray, step: Step) -> None:
        for name, value in self.obs.items():
            value[row, slot] = step.obs[name]
        self.first[row, slot] = step.first
        self.reward[row, slot] = step.reward
        self.alive[row, slot] = step.alive

    def _start_next_slots(self, lanes: np.ndarray) -> None:
        """Put the full slots of `lanes` in line and give each lane an empty one, joined to what it had."""
        for lane in lanes.tolist():
            self.full_slots.append(int(self.slot[lane]))
            slot = self.free_slots.popleft()
            self.slot[lane], self.row[lane] = slot, 0
            self.lane[slot], self.joined[slot] = lane, True

    def _start_rollouts(self, lane: np.ndarray, slot: np.ndarray) -> None:
        self.memory_at_start[slot] = self.memory[lane]
        self.version[slot] = self.components.learner.updates

    def _take_rollouts(self) -> list[Rollout]:
        rollouts = []
        while len(self.full_slots) >= self.lanes:
            slots = np.array([self.full_slots.popleft() for _ in range(self.lanes)])
            rollouts.append(self._make_rollout(slots))
            self.free_slots.extend(slots.tolist())
        return rollouts

    def _make_rollout(self, slots: np.ndarray) -> Rollout:
        return Rollout(
            obs={name: value[:, slots] for name, value in self.obs.items()},
            first=self.first[:, slots],
            raw_action=self.sample[:-1, slots],
            reward=self.reward[1:, slots],
            alive=self.alive[1:, slots],
            behavior=self.behavior[:-1, slots],
            memory=self.memory_at_start[slots],
            lane=self.lane[slots],
            continues_previous=self.joined[slots],
            weight=np.ones(len(slots), np.float32),
            index=np.full(len(slots), -1),
            version=self.version[slots],
        )


def _pad(array: np.ndarray, added: int, axis: int = 0) -> np.ndarray:
    """Return a copy with `added` zeros appended along an axis."""
    return np.pad(array, [(0, added * (axis == dimension)) for dimension in range(array.ndim)])
