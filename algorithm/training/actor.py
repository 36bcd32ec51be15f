"""Acting: one tick of the environments, in which every lane of every role receives a decision."""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Mapping
from urllib.parse import quote, unquote

import numpy as np

from algorithm.rollout import Rollout, Step
from algorithm.training.components import AgentComponents, TrainingComponents
from algorithm.training.invalid_values import Episode, get_lane_index
from algorithm.training.rollout_buffer import Arrays, RolloutBuffer

ADAPTER_KEY = "adapter"  # in the state of an actor: the state of the adapter, as JSON


class Actor:
    """An actor that decides in all lanes of all roles, and collects rollouts.

    Attributes:
        env_steps: executed decisions since a monitor last set it to 0.
        episodes: finished episodes; a monitor removes them.
    """

    def __init__(self, training: TrainingComponents, seed: int):
        """Start an episode in every lane; `seed` seeds the environments."""
        self.training = training
        self.env_steps = 0
        self.episodes: deque[Episode] = deque()
        self._buffers: dict[str, RolloutBuffer] = {}
        self._steps = training.adapter.reset(seed)
        # By role: the steps of the current tick, and which of their rows may be stored, until they are decided.
        self._sanitized: dict[str, tuple[Step, np.ndarray | None]] = {}
        self._is_between_ticks = True  # every decision has been executed

    def collect(self) -> list[tuple[str, Rollout]]:
        """Make one tick. Return the rollouts that it completed, with their roles."""
        rollouts = self.complete_rollouts()
        self.act()
        self.receive()
        return rollouts

    def complete_rollouts(self) -> list[tuple[str, Rollout]]:
        """Make the first part of a tick: write the received steps, and count the episodes that they ended.

        Returns:
            The rollouts that the steps completed, with their roles.
        """
        self._is_between_ticks = False
        rollouts = []
        for role, step in self._steps.items():
            components = self.training.get(role)
            buffer = self._get_buffer(role, components)
            if self.training.adapter.roles[role].lanes > buffer.lanes:
                buffer.grow(self.training.grow(role))
            buffer.active[get_lane_index(step, buffer.lanes)] = True
            step, stored = buffer.episodes(step)
            self._sanitized[role] = step, stored
            if stored is not None:
                step = step.take(stored)
            rollouts += [(role, rollout) for rollout in buffer.write_step(step)]
            self._count_episodes(role, buffer, step)
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
                self._get_buffer(role, self.training.get(role)).restore(arrays)
            else:
                self._steps[role] = Step.from_arrays(arrays)

    def _get_buffer(self, role: str, components: AgentComponents) -> RolloutBuffer:
        if role not in self._buffers:
            self._buffers[role] = RolloutBuffer(role, components)
        return self._buffers[role]

    def _count_episodes(self, role: str, buffer: RolloutBuffer, step: Step) -> None:
        self.env_steps += len(step.lane) - int(np.count_nonzero(step.is_bootstrap_row))
        finished = buffer.episodes.add(step)
        if not finished:
            return
        find_team = self.training.adapter.roles[role].find_team
        for lane, episode_return, length in finished:
            team = find_team(lane)
            self.episodes.append(Episode(role=role, lane=lane, episode_return=episode_return, length=length, team=team))
