"""A wrapper that adds the observations and actions of an agent's team, which only a centralised critic reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from algorithm.adapters.adapter import Adapter
from algorithm.adapters.wrappers import RoleWrapper
from algorithm.errors import UserError
from algorithm.rollout import Step
from algorithm.specs import TEAM, TEAM_ACTION, TEAM_PRESENT, ObsSpec, Role, select_observed

ARRAYS = ("group", "active", "action", "seen", "team_action")  # attributes of `_Members` [lanes, ...]


class TeamView(RoleWrapper):
    """A wrapper that adds to each row the other members of the agent's team, at most `size` - 1 of them.

    `team/NAME` are the last observations of the members that are present, `team/present` is 1 for the agent and for
    each of these members, and `team/action` are the encoded actions that they selected together with the agent's
    previous one. A member whose episode terminates while its team continues is absent in its last row; this row is that
    of a truncation, so that the value of the team follows the member's last action (Cohen et al. 2021).

    Args:
        inner: The adapter, whose Steps have the group of each lane.
        size: Largest number of members of a team.

    Raises:
        UserError: A team has more members, or the simulator has no teams.
    """

    def __init__(self, inner: Adapter, size: int):
        self._size = size
        self._members: dict[str, _Members] = {}
        super().__init__(inner)

    def reset(self, seed: int) -> dict[str, Step]:
        for members in self._members.values():
            members.active[:] = False
        return super().reset(seed)

    def send(self, actions: Mapping[str, np.ndarray]) -> None:
        for role, action in actions.items():
            self._members[role].record_actions(self._active_lanes[role], action)
        self._inner.send(actions)

    def _own_state(self) -> dict[str, Any]:
        return {**super()._own_state(), "members": {role: each.state() for role, each in self._members.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        for role, saved in state["members"].items():
            self._members[role].restore(saved)

    def _convert(self, steps: dict[str, Step]) -> dict[str, Step]:
        return {role: self._members[role](step) for role, step in steps.items()}

    def _update_roles(self) -> None:
        for name, role in self._inner.roles.items():
            if name not in self._members:
                self._members[name] = _Members(name, role, self._size)
            self._members[name].grow(role.lanes)
        self.roles = {
            name: replace(role, obs_specs={**role.obs_specs, **self._members[name].specs})
            for name, role in self._inner.roles.items()
        }


class _Members:
    """The last observations and actions of a role's lanes, and which of them are a team."""

    def __init__(self, name: str, role: Role, size: int):
        self.name, self.action_spec, self.others = name, role.action_spec, size - 1
        self.observed = select_observed(role.obs_specs)
        self.specs = {
            **{f"{TEAM}{key}": ObsSpec((self.others, *spec.shape), spec.dtype) for key, spec in self.observed.items()},
            TEAM_PRESENT: ObsSpec((size,)),
            TEAM_ACTION: ObsSpec((self.others, role.action_spec.encoded_size)),
        }
        self.obs = {key: np.zeros((0, *spec.shape), spec.dtype) for key, spec in self.observed.items()}
        self.group = np.zeros(0, np.int64)
        self.active = np.zeros(0, bool)  # in an episode
        self.action = np.zeros((0, role.action_spec.encoded_size), np.float32)  # the last action of each lane
        self.seen = np.zeros((0, self.others), np.int64)  # the other members in each lane's last row; -1: none
        self.team_action = np.zeros((0, *self.specs[TEAM_ACTION].shape), np.float32)

    def grow(self, lanes: int) -> None:
        """Add lanes without an episode, so that there are `lanes` lanes."""
        added = lanes - len(self.active)
        if added:
            self.obs = {key: _pad(value, added) for key, value in self.obs.items()}
            for name in ARRAYS:
                setattr(self, name, _pad(getattr(self, name), added))

    def record_actions(self, lane: np.ndarray, action: np.ndarray) -> None:
        """Store the actions [n, size] that lanes [n] execute, and those of the members that each of them saw."""
        self.action[lane] = self.action_spec.encode(action)
        seen = self.seen[lane]
        self.team_action[lane] = self.action[seen.clip(0)] * (seen >= 0)[..., None]

    def __call__(self, step: Step) -> Step:
        """Return the rows with the observations of their teams."""
        if step.group is None:
            raise UserError(f"algorithm POCA needs teams: the agents of {self.name} have no groups in this simulator")
        lane, is_last = step.lane, step.is_bootstrap_row
        # A member that begins another episode in the tick in which one leaves: the episode of the team has ended.
        restarts = np.zeros_like(self.active)
        restarts[lane] = step.first & self.active[lane]
        for key, value in self.obs.items():
            value[lane] = step.obs[key]
        self.group[lane], self.active[lane] = step.group, ~is_last | step.alive  # those of a truncation are present
        members = {group: np.flatnonzero(self.active & (self.group == group)) for group in np.unique(step.group)}
        seen = np.full((len(lane), self.others), -1)
        for row, group in enumerate(step.group.tolist()):
            others = members[group][members[group] != lane[row]]
            if len(others) > self.others:
                count = len(others) + 1
                raise UserError(f"poca_config.team_size is {self.others + 1}; a team of {self.name} has {count}")
            seen[row, : len(others)] = others
        self.seen[lane], self.active[lane] = seen, ~is_last
        is_present = seen >= 0
        has_left = is_last & ~step.alive & (is_present & ~restarts[seen.clip(0)]).any(1)
        obs = {f"{TEAM}{key}": value[seen.clip(0)] for key, value in self.obs.items()}
        for value in obs.values():
            value[~is_present] = 0
        present = np.concatenate((~has_left[:, None], is_present), 1).astype(np.float32)
        obs |= {TEAM_PRESENT: present, TEAM_ACTION: self.team_action[lane]}
        return replace(step, obs={**step.obs, **obs}, alive=step.alive | has_left)

    def state(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        arrays = {name: getattr(self, name).tolist() for name in ARRAYS}
        return {**arrays, "obs": {key: value.tolist() for key, value in self.obs.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        for name in ARRAYS:
            own = getattr(self, name)
            own[:] = np.array(state[name], own.dtype).reshape(own.shape)
        for key, value in self.obs.items():
            value[:] = np.array(state["obs"][key], value.dtype).reshape(value.shape)


def _pad(value: np.ndarray, added: int) -> np.ndarray:
    return np.pad(value, ((0, added), *[(0, 0)] * (value.ndim - 1)))
