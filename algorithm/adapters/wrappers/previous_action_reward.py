"""What an agent did last, and what it got for it, as observations."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from algorithm.adapters.adapter import Adapter, UnsupportedEnvironment
from algorithm.rollout import Step
from algorithm.specs import ActionSpec, ObsSpec, Role

PREVIOUS_ACTION, PREVIOUS_REWARD = "previous_action", "previous_reward"
OBSERVATION_NAMES = {"action": PREVIOUS_ACTION, "reward": PREVIOUS_REWARD}


def find_previous_kinds(role: Role) -> list[str]:
    """Which of them a role is shown."""
    return [kind for kind, name in OBSERVATION_NAMES.items() if name in role.obs_specs]


class PreviousTracker:
    """The last action and reward of `lanes` lanes, as the observations of `kinds` (action, reward).

    An action is shown as its numbers in [-1, 1], then each branch one-hot; both are zero where an episode starts.
    """

    def __init__(self, kinds: Collection[str], lanes: int, spec: ActionSpec):
        shapes = {PREVIOUS_ACTION: (spec.encoded_size,), PREVIOUS_REWARD: (1,)}
        self.specs = {OBSERVATION_NAMES[kind]: ObsSpec(shapes[OBSERVATION_NAMES[kind]]) for kind in kinds}
        self.action_spec = spec
        self.action = np.zeros((lanes, spec.encoded_size), np.float32)

    def grow(self, lanes: int) -> None:
        """Add lanes without a previous action, up to `lanes` lanes."""
        self.action = np.pad(self.action, ((0, lanes - len(self.action)), (0, 0)))

    def record_action(self, lane: np.ndarray, action: np.ndarray) -> None:
        """These lanes [n] are going to do `action` [n, size]."""
        self.action[lane] = self.action_spec.encode(action)

    def __call__(self, lane: np.ndarray, first: np.ndarray, reward: np.ndarray) -> dict[str, np.ndarray]:
        """What these lanes [n] are shown, some of which start an episode, beside the `reward` [n] they just got."""
        self.action[lane[first]] = 0
        values = {PREVIOUS_ACTION: self.action[lane], PREVIOUS_REWARD: np.where(first, np.float32(0), reward)[:, None]}
        return {name: values[name] for name in self.specs}


class PreviousActionReward(Adapter):
    """Shows, beside what another adapter shows, each lane's last action or reward: whichever `kinds` name.

    Both are zero where an episode starts. Raises UnsupportedEnvironment where the simulator has such names of its own.
    """

    def __init__(self, inner: Adapter, kinds: Collection[str]):
        self._inner, self._kinds = inner, kinds
        self._previous: dict[str, PreviousTracker] = {}
        self._active_lanes: dict[str, np.ndarray] = {}  # lanes of each role's last Step
        self._update_roles()

    def reset(self, seed: int) -> dict[str, Step]:
        return self._add_observations(self._inner.reset(seed))

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, Step]:
        self.send(actions)
        return self.receive()

    def send(self, actions: Mapping[str, np.ndarray]) -> None:
        for role, action in actions.items():
            self._previous[role].record_action(self._active_lanes[role], action)
        self._inner.send(actions)

    def receive(self) -> dict[str, Step]:
        return self._add_observations(self._inner.receive())

    def statistics(self) -> dict[str, float]:
        return self._inner.statistics()

    def state(self) -> dict[str, Any] | None:
        inner = self._inner.state()
        if inner is None:
            return None
        return {
            "inner": inner,
            "active_lanes": {role: lanes.tolist() for role, lanes in self._active_lanes.items()},
            "actions": {role: previous.action.tolist() for role, previous in self._previous.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._inner.restore(state.get("inner", {}))
        self._update_roles()
        self._active_lanes = {role: np.array(lanes, np.int64) for role, lanes in state["active_lanes"].items()}
        for role, actions in state["actions"].items():
            self._previous[role].action[:] = actions

    def close(self) -> None:
        self._inner.close()

    def _add_observations(self, steps: dict[str, Step]) -> dict[str, Step]:
        self._update_roles()
        self._active_lanes = {role: step.lane for role, step in steps.items()}
        return {
            role: replace(step, obs={**step.obs, **self._previous[role](step.lane, step.first, step.reward)})
            for role, step in steps.items()
        }

    def _update_roles(self) -> None:
        """Take over the roles, and the restarts, that there are by now."""
        self.restarts = self._inner.restarts
        for name, role in self._inner.roles.items():
            if name not in self._previous:
                self._previous[name] = PreviousTracker(self._kinds, role.lanes, role.action_spec)
                if clash := self._previous[name].specs.keys() & role.obs_specs.keys():
                    raise UnsupportedEnvironment(f"observe_previous: the simulator itself shows {min(clash)!r}")
            elif role.lanes > len(self._previous[name].action):
                self._previous[name].grow(role.lanes)
        self.roles = {name: self._extend_role(name, role) for name, role in self._inner.roles.items()}

    def _extend_role(self, name: str, role: Role) -> Role:
        return replace(role, obs_specs={**role.obs_specs, **self._previous[name].specs})
