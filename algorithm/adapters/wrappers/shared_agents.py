"""The wrapper that presents the roles that share an agent as one role, for example the teams of a game."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from algorithm.adapters.adapter import Adapter, UnsupportedEnvironment
from algorithm.adapters.wrappers.adapter_wrapper import AdapterWrapper
from algorithm.rollout import Step, merge_steps
from algorithm.specs import Role


class SharedAgents(AdapterWrapper):
    """A wrapper whose roles are agents: the lanes of the roles that share an agent are lanes of one role.

    Args:
        inner: The adapter.
        agents: {role: agent}. The agent of any other role is the one in `inner.shared_agents`, or the role itself.
        teams: {agent: team of each lane}, lanes that are known before their roles appear, as in a resumed run. A role
            keeps its lanes; further lanes are appended.

    Raises:
        UnsupportedEnvironment: Roles share an agent, but their observations or actions differ.
    """

    def __init__(self, inner: Adapter, agents: Mapping[str, str], teams: Mapping[str, Sequence[str]]):
        self._inner, self._agents = inner, agents
        self._teams = {agent: list(names) for agent, names in teams.items()}  # {agent: role of each lane}
        self._lanes: dict[str, np.ndarray] = {}  # {role: its lanes among the lanes of its agent}
        self._known_roles: dict[str, Role] = {}  # the roles of `inner` at the last update
        self._active_lanes: dict[str, np.ndarray] = {}  # {agent: lanes [n] of its last Step}
        self._roles: dict[str, Role] = {}
        self._update_roles()

    @property
    def roles(self) -> Mapping[str, Role]:  # type: ignore[override]
        return self._roles

    @property
    def shared_agents(self) -> None:
        return None

    def reset(self, seed: int) -> dict[str, Step]:
        return self._merge_by_agent(self._inner.reset(seed))

    def send(self, actions: Mapping[str, np.ndarray]) -> None:
        by_role = {}
        for agent, action in actions.items():
            role_of_row = np.array(self._teams[agent])[self._active_lanes[agent]]
            for role in dict.fromkeys(role_of_row.tolist()):
                by_role[role] = action[role_of_row == role]
        self._inner.send(by_role)

    def receive(self) -> dict[str, Step]:
        return self._merge_by_agent(self._inner.receive())

    def state(self) -> dict[str, Any] | None:
        inner = self._inner.state()
        if inner is None:
            return None
        return {"inner": inner, "active_lanes": {agent: lanes.tolist() for agent, lanes in self._active_lanes.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._inner.restore(state.get("inner", {}))
        self._update_roles()
        self._active_lanes = {agent: np.array(lanes, np.int64) for agent, lanes in state["active_lanes"].items()}

    def _get_agent(self, role: str) -> str:
        return self._agents.get(role) or (self._inner.shared_agents or {}).get(role, role)

    def _update_roles(self) -> None:
        """Update the roles from the roles of `inner`."""
        new_roles = {name: role for name, role in self._inner.roles.items() if self._known_roles.get(name) is not role}
        if not new_roles:
            return
        for name, role in sorted(new_roles.items()):  # the order of a simulator's roles may vary
            self._check_specs(name, role)
            self._append_lanes(name, role.lanes)
            self._known_roles[name] = role
        for name, role in new_roles.items():
            agent = self._get_agent(name)
            teams = self._teams[agent]
            shared = () if set(teams) == {agent} else tuple(teams)
            self._roles = {**self._roles, agent: replace(role, lanes=len(teams), teams=shared)}

    def _check_specs(self, name: str, role: Role) -> None:
        """Raise UnsupportedEnvironment if another role with the same agent has other specs."""
        agent = self._get_agent(name)
        for other, known in self._known_roles.items():
            same = (known.obs_specs, known.action_spec) == (role.obs_specs, role.action_spec)
            if not same and self._get_agent(other) == agent:
                raise UnsupportedEnvironment(
                    f"the roles {other!r} and {name!r} share the agent {agent!r}, but their observations or actions "
                    f"differ; give one of them its own agent: ma_config.{name}.agent={name}"
                )

    def _append_lanes(self, name: str, lanes: int) -> None:
        """Append the lanes of a role that its agent does not have yet."""
        teams = self._teams.setdefault(self._get_agent(name), [])
        teams.extend([name] * (lanes - teams.count(name)))
        self._lanes[name] = np.flatnonzero(np.array(teams) == name)

    def _merge_by_agent(self, steps: Mapping[str, Step]) -> dict[str, Step]:
        """Return the Steps of roles as Steps of agents."""
        self._update_roles()
        by_agent: dict[str, list[Step]] = defaultdict(list)
        for role, step in steps.items():
            by_agent[self._get_agent(role)].append(replace(step, lane=self._lanes[role][step.lane]))
        merged = {agent: merge_steps(agent_steps) for agent, agent_steps in by_agent.items()}
        self._active_lanes = {agent: step.lane for agent, step in merged.items()}
        return merged
