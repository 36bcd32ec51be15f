"""The buffer in which the steps of a role are collected until they are a rollout."""

from __future__ import annotations

from collections import deque

import numpy as np

from algorithm.rollout import Decision, Rollout, Step
from algorithm.training.components import AgentComponents
from algorithm.training.invalid_values import StepSanitizer, get_lane_index

Arrays = dict[str, np.ndarray]
# At most 2 lanes - 1 slots are full at a time (one tick may fill one per lane), and each lane writes to one more.
SLOTS_PER_LANE = 3
# The arrays of a buffer, without those whose size is known later or that have a name in `obs`.
ROW_ARRAYS = ("first", "reward", "alive", "raw_action")  # [rows + 1, slots]
SLOT_ARRAYS = ("memory_at_start", "continues_previous", "version", "lane")  # [slots]
LANE_ARRAYS = ("row", "slot", "memory", "active")  # [lanes]
STATE_ARRAYS = (*ROW_ARRAYS, *SLOT_ARRAYS, *LANE_ARRAYS)


class RolloutBuffer:
    """A buffer of the steps of one role's lanes, which returns them as rollouts [T, lanes].

    A slot holds T rows of one lane, and the observation after them. A lane writes to its slot whenever it receives a
    decision; when the slot is full, the lane continues in another. As soon as there are as many full slots as lanes,
    the oldest of them become a rollout.
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
        # Row t + 1 has the reward and `alive` that follow row t, as they are in a Step.
        self.reward = np.zeros(shape, np.float32)
        self.alive = np.zeros(shape, bool)
        self.raw_action = np.zeros((*shape, role.action_spec.size), np.float32)
        self.behavior: np.ndarray | None = None  # [*shape, S], where S is known with the first decision
        self.memory_at_start = np.zeros((slots, agent.state_size), np.float32)
        self.continues_previous = np.zeros(slots, bool)
        self.version = np.zeros(slots, np.int64)
        self.lane = np.zeros(slots, np.int64)

        self.row = np.zeros(self.lanes, np.int64)  # the row that each lane writes next
        self.slot = np.arange(self.lanes)  # the slot that each lane writes to
        self.lane[: self.lanes] = self.slot
        self.free_slots = deque(range(self.lanes, slots))
        self.full_slots: deque[int] = deque()
        self.memory = np.zeros((self.lanes, agent.state_size), np.float32)
        self.active = np.zeros(self.lanes, bool)
        self.episodes = StepSanitizer(name, self.lanes, role.action_spec.branches)

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
            self.lane[slot], self.continues_previous[slot] = lane, False
        self.episodes.grow(self.lanes)

    def write_step(self, step: Step) -> list[Rollout]:
        """Write a row for each lane of `step`. Return the rollouts that are now complete."""
        lane = get_lane_index(step, self.lanes)
        row, slot = self.row[lane], self.slot[lane]
        self._write_rows(row, slot, step)
        full = row == self.n_rows
        if not np.count_nonzero(full):  # faster than `any`
            return []
        self._start_next_slots(step.lane[full])
        self._write_rows(self.row[lane], self.slot[lane], step)
        return self._take_rollouts()

    def write_decision(self, step: Step, decision: Decision) -> None:
        """Write the decision for each lane of `step`, which `write_step` has written."""
        if self.behavior is None:
            self.behavior = np.zeros((*self.first.shape, decision.behavior.shape[-1]), np.float32)
        lane = get_lane_index(step, self.lanes)
        row, slot = self.row[lane], self.slot[lane]
        if np.count_nonzero(row) < len(row):
            starting = row == 0
            started = slot[starting]
            self.memory_at_start[started] = self.memory[step.lane[starting]]
            self.version[started] = self.components.learner.updates
        self.raw_action[row, slot] = decision.raw_action
        self.behavior[row, slot] = decision.behavior
        self.memory[lane] = decision.memory
        self.row[lane] = row + 1

    def state(self) -> Arrays:
        """Return everything, for a checkpoint."""
        arrays = {name: getattr(self, name) for name in STATE_ARRAYS}
        arrays |= {f"obs/{name}": value for name, value in self.obs.items()}
        if self.behavior is not None:
            arrays["behavior"] = self.behavior
        arrays |= {"free": np.array(self.free_slots, np.int64), "full": np.array(self.full_slots, np.int64)}
        return arrays | self.episodes.state()

    def restore(self, state: Arrays) -> None:
        """Restore what `state` returned.

        Raises:
            ValueError: it has another number of rows or lanes.
        """
        if state["first"].shape != self.first.shape:
            raise ValueError(f"rollouts of {state['first'].shape} rows and slots; this run has {self.first.shape}")
        for name in STATE_ARRAYS:
            setattr(self, name, state[name].copy())
        self.obs = {name: state[f"obs/{name}"].copy() for name in self.obs}
        self.behavior = state["behavior"].copy() if "behavior" in state else None
        self.free_slots, self.full_slots = deque(state["free"].tolist()), deque(state["full"].tolist())
        self.episodes.restore(state)

    def _write_rows(self, row: np.ndarray, slot: np.ndarray, step: Step) -> None:
        for name, value in self.obs.items():
            value[row, slot] = step.obs[name]
        self.first[row, slot] = step.first
        self.reward[row, slot] = step.reward
        self.alive[row, slot] = step.alive

    def _start_next_slots(self, lanes: np.ndarray) -> None:
        """Append the slots of `lanes` to the full ones, and give each lane a free slot that continues its last."""
        for lane in lanes.tolist():
            self.full_slots.append(int(self.slot[lane]))
            slot = self.free_slots.popleft()
            self.slot[lane], self.row[lane] = slot, 0
            self.lane[slot], self.continues_previous[slot] = lane, True

    def _take_rollouts(self) -> list[Rollout]:
        rollouts = []
        while len(self.full_slots) >= self.lanes:
            slots = np.array([self.full_slots.popleft() for _ in range(self.lanes)])
            rollouts.append(self._make_rollout(slots))
            self.free_slots.extend(slots.tolist())
        return rollouts

    def _make_rollout(self, slots: np.ndarray) -> Rollout:
        assert self.behavior is not None  # full slots have rows, and so decisions
        return Rollout(
            obs={name: value[:, slots] for name, value in self.obs.items()},
            first=self.first[:, slots],
            raw_action=self.raw_action[:-1, slots],
            reward=self.reward[1:, slots],
            alive=self.alive[1:, slots],
            behavior=self.behavior[:-1, slots],
            memory=self.memory_at_start[slots],
            lane=self.lane[slots],
            continues_previous=self.continues_previous[slots],
            weight=np.ones(len(slots), np.float32),
            index=np.full(len(slots), -1),
            version=self.version[slots],
        )


def _pad(array: np.ndarray, added: int, axis: int = 0) -> np.ndarray:
    """Return a copy with `added` zeros appended along an axis."""
    return np.pad(array, [(0, added * (axis == dimension)) for dimension in range(array.ndim)])
