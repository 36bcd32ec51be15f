"""The wrapper that adds an agent's previous action and reward to its observations."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from algorithm.adapters.adapter import Adapter, UnsupportedEnvironment
from algorithm.adapters.wrappers.adapter_wrapper import AdapterWrapper
from algorithm.rollout import Step
from algorithm.specs import ActionSpec, ObsSpec, Role

PREVIOUS_ACTION, PREVIOUS_REWARD = "previous_action", "previous_reward"
OBSERVATION_NAMES = {"action": PREVIOUS_ACTION, "reward": PREVIOUS_REWARD}  # {kind: name of the observation}


def find_previous_kinds(role: Role) -> list[str]:
    """Return the kinds (action, reward) that are observations of a role."""
    return [kind for kind, name in OBSERVATION_NAMES.items() if name in role.obs_specs]


class PreviousTracker:
    """A store of the previous actions of a role's lanes, which returns the observations of `kinds` (action, reward).

    The observation of an action is its continuous values in [-1, 1], then each discrete branch one-hot. At the start
    of an episode, action and reward are zero.
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
        """Store the actions [n, size] that the lanes [n] execute next."""
        self.action[lane] = self.action_spec.encode(action)

    def __call__(self, lane: np.ndarray, first: np.ndarray, reward: np.ndarray) -> dict[str, np.ndarray]:
        """Return the observations of these lanes.

        Args:
            lane: [n] int64.
            first: [n] bool, lanes in which an episode starts.
            reward: [n] float32, rewards of the previous actions.
        """
        self.action[lane[first]] = 0
        values = {PREVIOUS_ACTION: self.action[lane], PREVIOUS_REWARD: np.where(first, np.float32(0), reward)[:, None]}
        return {name: values[name] for name in self.specs}


class PreviousActionReward(AdapterWrapper):
    """A wrapper that adds each lane's previous action or reward, or both, to the observations, as `kinds` selects.

    Raises UnsupportedEnvironment if the simulator itself has an observation of the same name.
    """

    def __init__(self, inner: Adapter, kinds: Collection[str]):
        self._inner, self._kinds = inner, kinds
        self._trackers: dict[str, PreviousTracker] = {}
        self._active_lanes: dict[str, np.ndarray] = {}  # {role: lanes [n] of its last Step}
        self._roles: dict[str, Role] = {}
        self._update_roles()

    @property
    def roles(self) -> Mapping[str, Role]:  # type: ignore[override]
        return self._roles

    def reset(self, seed: int) -> dict[str, Step]:
        return self._add_observations(self._inner.reset(seed))

    def send(self, actions: Mapping[str, np.ndarray]) -> None:
        for role, action in actions.items():
            self._trackers[role].record_action(self._active_lanes[role], action)
        self._inner.send(actions)

    def receive(self) -> dict[str, Step]:
        return self._add_observations(self._inner.receive())

    def state(self) -> dict[str, Any] | None:
        inner = self._inner.state()
        if inner is None:
            return None
        return {
            "inner": inner,
            "active_lanes": {role: lanes.tolist() for role, lanes in self._active_lanes.items()},
            "actions": {role: tracker.action.tolist() for role, tracker in self._trackers.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._inner.restore(state.get("inner", {}))
        self._update_roles()
        self._active_lanes = {role: np.array(lanes, np.int64) for role, lanes in state["active_lanes"].items()}
        for role, actions in state["actions"].items():
            self._trackers[role].action[:] = actions

    def _add_observations(self, steps: dict[str, Step]) -> dict[str, Step]:
        self._update_roles()
        self._active_lanes = {role: step.lane for role, step in steps.items()}
        return {
            role: replace(step, obs={**step.obs, **self._trackers[role](step.lane, step.first, step.reward)})
            for role, step in steps.items()
        }

    def _update_roles(self) -> None:
        """Add trackers of new roles and new lanes, and extend the specs of all roles."""
        for name, role in self._inner.roles.items():
            if name not in self._trackers:
                self._trackers[name] = PreviousTracker(self._kinds, role.lanes, role.action_spec)
                if clash := self._trackers[name].specs.keys() & role.obs_specs.keys():
                    raise UnsupportedEnvironment(
                        f"observe_previous: the simulator itself has an observation {min(clash)!r}"
                    )
            elif role.lanes > len(self._trackers[name].action):
                self._trackers[name].grow(role.lanes)
        self._roles = {
            name: replace(role, obs_specs={**role.obs_specs, **self._trackers[name].specs})
            for name, role in self._inner.roles.items()
        }
