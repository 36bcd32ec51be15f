"""Ticks of the environments, in which every lane of every role receives a decision, and rollouts of them."""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from functools import partial
from urllib.parse import quote, unquote

import numpy as np

from algorithm.agents.agent import LossResult
from algorithm.rollout import COLLECTED, Decision, Rollout, Step
from algorithm.training.components import AgentComponents, TrainingComponents, run_updates
from algorithm.training.invalid_values import Episode, RunningEpisodes, get_lane_index

ADAPTER_KEY = "adapter"  # in the state of an actor: the state of the adapter, as JSON
Arrays = dict[str, np.ndarray]
# At most 2 lanes - 1 slots are full at a time (one tick may fill one per lane), and each lane writes to one more.
SLOTS_PER_LANE = 3
# The arrays of a buffer, without those that have a name in `obs`.
ROW_ARRAYS = ("first", "reward", "alive", "raw_action", "behavior")  # [rows + 1, slots]
SLOT_ARRAYS = ("memory_at_start", "continues_previous", "version", "lane")  # [slots]
LANE_ARRAYS = ("row", "slot", "memory", "active")  # [lanes]
STATE_ARRAYS = (*ROW_ARRAYS, *SLOT_ARRAYS, *LANE_ARRAYS)


class Actor:
    """An actor that decides in all lanes of all roles, and collects rollouts.

    Attributes:
        env_steps: executed decisions since a monitor last set it to 0.
        episodes: finished episodes; a monitor removes them.
    """

    def __init__(self, training: TrainingComponents, seed: int, iterations: int = 0):
        """Start an episode in every lane.

        Args:
            training: the components of the run.
            seed: seed of the environments.
            iterations: completed iterations of the run.
        """
        self.training = training
        self.env_steps = 0
        self.episodes: deque[Episode] = deque()
        self._iterations = iterations
        self._buffers: dict[str, RolloutBuffer] = {}
        self._steps = training.adapter.reset(seed)
        # By role: the steps of the current tick, and which of their rows may be stored, until they are decided.
        self._sanitized: dict[str, tuple[Step, np.ndarray | None]] = {}
        self._is_between_ticks = True  # every decision has been executed

    def run_tick(self, record_update: Callable[[str, LossResult], object]) -> None:
        """Make one tick of the environments, and the updates that follow the rollouts that it completes.

        Agents without a replay learn first; the actor decides and sends the actions; agents with a replay learn while
        environments in other processes execute them; the actor receives the next steps. Thus an agent without a replay
        decides the first row of a rollout with the parameters that it learned from the previous one. An agent with a
        replay decides it before: its rollouts record the policy that acted (`behavior`).

        Args:
            record_update: receives the role and the result of each update.
        """
        rollouts = self.complete_rollouts()
        for has_acted in (False, True):
            if has_acted:
                self.act()
            for role, rollout in rollouts:
                components = self.training.get(role)
                if components.agent.schedule.uses_replay == has_acted:
                    run_updates(components, rollout, partial(record_update, role))
                    self.training.timer.lap("learning")
        self.receive()

    def complete_rollouts(self) -> list[tuple[str, Rollout]]:
        """Make the first part of a tick: write the received steps, and count the episodes that they ended.

        Returns:
            The rollouts that the steps completed, with their roles.
        """
        self._is_between_ticks = False
        rollouts = []
        for role, step in self._steps.items():
            buffer = self._get_buffer(role)
            if self.training.adapter.roles[role].lanes > buffer.lanes:
                buffer.grow(self.training.grow(role))
            buffer.active[get_lane_index(step, buffer.lanes)] = True
            step, stored = buffer.episodes(step)
            self._sanitized[role] = step, stored
            if stored is not None:
                step = step.take(stored)
            rollouts += [(role, rollout) for rollout in buffer.write_step(step)]
            self.env_steps += len(step.lane) - int(np.count_nonzero(step.is_bootstrap_row))
            for lane, episode_return, length in buffer.episodes.add(step):
                team = self.training.adapter.roles[role].find_team(lane)
                episode = Episode(role=role, lane=lane, episode_return=episode_return, length=length, team=team)
                self.episodes.append(episode)
        self.training.timer.lap("acting")
        return rollouts

    def act(self) -> None:
        """Make the second part of a tick: decide in all lanes, and send the actions to the environments.

        Environments in other processes execute the actions until `receive` is called, which must follow.
        """
        actions = {}
        for role, (step, stored) in self._sanitized.items():
            components, buffer = self.training.get(role), self._buffers[role]
            memory = step.select_memory(buffer.memory)
            decision = components.act(step, memory)
            actions[role] = decision.action
            if stored is not None:
                step, decision = step.take(stored), decision.take(stored)
            buffer.write_decision(step, decision)
        self._sanitized.clear()
        self.training.adapter.send(actions)
        self.training.timer.lap("acting")

    def receive(self) -> None:
        """Make the last part of a tick: receive the next steps of the environments."""
        self._steps = self.training.adapter.receive()
        self._is_between_ticks = True
        self.training.timer.lap("environment")

    @property
    def active_lanes(self) -> Mapping[str, np.ndarray]:
        """Return {role: [lanes] bool}: whether each lane had a row since this array was last cleared."""
        return {role: buffer.active for role, buffer in self._buffers.items()}

    def set_iterations(self, iterations: int) -> None:
        """Count no lane as active, if the run has completed another number of iterations than before."""
        if iterations != self._iterations:
            for lanes in self.active_lanes.values():
                lanes[:] = False
        self._iterations = iterations

    def state(self) -> Arrays | None:
        """Return the incomplete rollouts and the state of the environments, for a checkpoint.

        Returns:
            Named arrays. None if the environments have no state that can be restored, or a tick was interrupted: a
            resumed run then starts new episodes, and its first rollouts continue no earlier ones.
        """
        adapter_state = self.training.adapter.state() if self._is_between_ticks else None
        if adapter_state is None:
            return None
        arrays = {ADAPTER_KEY: np.array(json.dumps(adapter_state))}
        for role, buffer in self._buffers.items():
            arrays |= {f"{quote(role, safe='')}/rollout/{name}": value for name, value in buffer.state().items()}
        for role, step in self._steps.items():
            arrays |= {f"{quote(role, safe='')}/step/{name}": value for name, value in step.to_arrays().items()}
        return arrays

    def restore(self, state: Arrays) -> None:
        """Restore what `state` returned.

        Raises:
            ValueError: it has other roles or other numbers of lanes.
        """
        self.training.adapter.restore(json.loads(str(state[ADAPTER_KEY])))
        parts: dict[tuple[str, str], Arrays] = defaultdict(dict)
        for path, value in state.items():
            if path != ADAPTER_KEY:
                role, kind, name = path.split("/", 2)
                parts[unquote(role), kind][name] = value
        self._buffers, self._steps = {}, {}
        for (role, kind), arrays in parts.items():
            if kind == "rollout":
                self._get_buffer(role).restore(arrays)
            else:
                self._steps[role] = Step.from_arrays(arrays)

    def _get_buffer(self, role: str) -> RolloutBuffer:
        if role not in self._buffers:
            self._buffers[role] = RolloutBuffer(role, self.training.get(role))
        return self._buffers[role]


class RolloutBuffer:
    """A buffer of the steps of one role's lanes, which returns them as rollouts [T, lanes].

    A slot holds T rows of one lane, and the observation after them. A lane writes to its slot whenever it receives a
    decision; when the slot is full, the lane continues in another. As soon as there are as many full slots as lanes,
    the oldest of them become a rollout.
    """

    def __init__(self, name: str, components: AgentComponents):
        role, agent = components.role, components.agent
        self.n_rows, self.lanes = agent.schedule.rollout_length, 0
        shape = (self.n_rows + 1, 0)
        self.obs = {name: np.zeros((*shape, *spec.shape), spec.dtype) for name, spec in role.obs_specs.items()}
        self.first = np.zeros(shape, bool)
        # Row t + 1 has the reward and `alive` that follow row t, as they are in a Step.
        self.reward = np.zeros(shape, np.float32)
        self.alive = np.zeros(shape, bool)
        self.raw_action = np.zeros((*shape, role.action_spec.size), np.float32)
        self.behavior = np.zeros((*shape, agent.family.statistics_size), np.float32)
        self.memory_at_start = np.zeros((0, agent.state_size), np.float32)
        self.continues_previous = np.zeros(0, bool)
        self.version = np.zeros(0, np.int64)
        self.lane = np.zeros(0, np.int64)

        self.row = np.zeros(0, np.int64)  # the row that each lane writes next
        self.slot = np.zeros(0, np.int64)  # the slot that each lane writes to
        self.free_slots: deque[int] = deque()
        self.full_slots: deque[int] = deque()
        self.memory = np.zeros((0, agent.state_size), np.float32)
        self.active = np.zeros(0, bool)
        self.episodes = RunningEpisodes(name, 0, role.action_spec.branches)
        self.grow(components)

    def grow(self, components: AgentComponents) -> None:
        """Add the new lanes of `components`, each with an empty slot. Existing lanes keep their slots and rows."""
        old_lanes, self.components, self.lanes = self.lanes, components, components.role.lanes
        lanes, slots = self.lanes - old_lanes, SLOTS_PER_LANE * (self.lanes - old_lanes)
        self.obs = {name: _pad(value, slots, axis=1) for name, value in self.obs.items()}
        for names, added, axis in ((ROW_ARRAYS, slots, 1), (SLOT_ARRAYS, slots, 0), (LANE_ARRAYS, lanes, 0)):
            for name in names:
                setattr(self, name, _pad(getattr(self, name), added, axis))
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
        for full_lane in step.lane[full].tolist():  # which continues in a free slot
            self.full_slots.append(int(self.slot[full_lane]))
            next_slot = self.free_slots.popleft()
            self.slot[full_lane], self.row[full_lane] = next_slot, 0
            self.lane[next_slot], self.continues_previous[next_slot] = full_lane, True
        self._write_rows(self.row[lane], self.slot[lane], step)
        rollouts = []
        while len(self.full_slots) >= self.lanes:
            slots = np.array([self.full_slots.popleft() for _ in range(self.lanes)])
            rollouts.append(self._make_rollout(slots))
            self.free_slots.extend(slots.tolist())
        return rollouts

    def write_decision(self, step: Step, decision: Decision) -> None:
        """Write the decision for each lane of `step`, which `write_step` has written."""
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
        self.free_slots, self.full_slots = deque(state["free"].tolist()), deque(state["full"].tolist())
        self.episodes.restore(state)

    def _write_rows(self, row: np.ndarray, slot: np.ndarray, step: Step) -> None:
        for name, value in self.obs.items():
            value[row, slot] = step.obs[name]
        self.first[row, slot] = step.first
        self.reward[row, slot] = step.reward
        self.alive[row, slot] = step.alive

    def _make_rollout(self, slots: np.ndarray) -> Rollout:
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
            index=np.full(len(slots), COLLECTED),
            version=self.version[slots],
        )


def _pad(array: np.ndarray, added: int, axis: int) -> np.ndarray:
    """Return a copy with `added` zeros appended along an axis."""
    return np.pad(array, [(0, added * (axis == dimension)) for dimension in range(array.ndim)])
