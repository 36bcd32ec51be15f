"""Roles that share an agent, as one role: for example the teams of a game."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from algorithm.adapters.adapter import Adapter, UnsupportedEnvironment
from algorithm.rollout import Step
from algorithm.specs import Role

RowIndices = np.ndarray | None  # where a role's rows are in a Step of its agent; None: they are all of it


class SharedAgents(Adapter):
    """An adapter whose roles are agents: the roles that share one are its teams, their lanes side by side.

    `agents` names the agent of a role. For other roles it is the one in `inner.shared_agents`, or the role itself.
    `teams` holds lanes that are known before their roles appear, as {agent: the team of each lane}. A role keeps its
    lanes; further ones are appended.

    Raises UnsupportedEnvironment for roles that share an agent but not their observations and actions.
    """

    def __init__(self, inner: Adapter, agents: Mapping[str, str], teams: Mapping[str, Sequence[str]]):
        self._inner, self._agents = inner, agents
        self._teams = {agent: list(names) for agent, names in teams.items()}  # the role of each of the agent's lanes
        self._lanes: dict[str, np.ndarray] = {}  # of each role: its lanes among those of its agent
        self._known_roles: dict[str, Role] = {}  # the roles of `inner` as they were last presented
        self._active_rows: dict[str, dict[str, RowIndices]] = {}  # the rows of each agent's last Step, by role
        self.roles = {}
        self._update_roles()

    def reset(self, seed: int) -> dict[str, Step]:
        return self._merge_by_agent(self._inner.reset(seed))

    def step(self, actions: Mapping[str, np.ndarray]) -> dict[str, Step]:
        self.send(actions)
        return self.receive()

    def send(self, actions: Mapping[str, np.ndarray]) -> None:
        self._inner.send(
            {
                role: action if rows is None else action[rows]
                for agent, action in actions.items()
                for role, rows in self._active_rows[agent].items()
            }
        )

    def receive(self) -> dict[str, Step]:
        return self._merge_by_agent(self._inner.receive())

    def statistics(self) -> dict[str, float]:
        return self._inner.statistics()

    def state(self) -> dict[str, Any] | None:
        inner = self._inner.state()
        if inner is None:
            return None
        active_rows = {
            agent: {role: None if rows is None else rows.tolist() for role, rows in roles.items()}
            for agent, roles in self._active_rows.items()
        }
        return {"inner": inner, "active_rows": active_rows}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._inner.restore(state.get("inner", {}))
        self._update_roles()
        self._active_rows = {
            agent: {role: None if rows is None else np.array(rows, np.int64) for role, rows in roles.items()}
            for agent, roles in state["active_rows"].items()
        }

    def close(self) -> None:
        self._inner.close()

    def _get_agent(self, role: str) -> str:
        return self._agents.get(role) or (self._inner.shared_agents or {}).get(role, role)

    def _update_roles(self) -> None:
        """Update the roles and the number of restarts from those of `inner`."""
        self.restarts = self._inner.restarts
        new_roles = {name: role for name, role in self._inner.roles.items() if self._known_roles.get(name) is not role}
        if not new_roles:
            return
        for name, role in sorted(new_roles.items()):  # simulators list roles in any order
            self._check_specs(name, role)
            self._append_lanes(name, role.lanes)
            self._known_roles[name] = role
        for name, role in new_roles.items():
            agent = self._get_agent(name)
            teams = self._teams[agent]
            shared = () if set(teams) == {agent} else tuple(teams)
            self.roles = {**self.roles, agent: replace(role, lanes=len(teams), teams=shared)}

    def _check_specs(self, name: str, role: Role) -> None:
        """Raise UnsupportedEnvironment if another role with the same agent has other specs."""
        agent = self._get_agent(name)
        for other, known in self._known_roles.items():
            same = (known.obs_specs, known.action_spec) == (role.obs_specs, role.action_spec)
            if not same and self._get_agent(other) == agent:
                raise UnsupportedEnvironment(
                    f"the roles {other!r} and {name!r} share the agent {agent!r}, but their observations or actions "
                    f"differ; give one an agent of its own: ma_config.{name}.agent={name}"
                )

    def _append_lanes(self, name: str, lanes: int) -> None:
        """Append the lanes of a role that its agent does not have yet."""
        teams = self._teams.setdefault(self._get_agent(name), [])
        teams.extend([name] * (lanes - teams.count(name)))
        self._lanes[name] = np.flatnonzero(np.array(teams) == name)

    def _merge_by_agent(self, steps: Mapping[str, Step]) -> dict[str, Step]:
        self._update_roles()
        by_agent: dict[str, dict[str, Step]] = defaultdict(dict)
        for role, step in steps.items():
            by_agent[self._get_agent(role)][role] = step
        self._active_rows, merged = {}, {}
        for agent, agent_steps in by_agent.items():
            merged[agent], self._active_rows[agent] = self._merge_steps(agent, agent_steps)
        return merged

    def _merge_steps(self, agent: str, steps: Mapping[str, Step]) -> tuple[Step, dict[str, RowIndices]]:
        """Return the Steps of roles as one, in the order of lanes, and the places of each role's rows in it."""
        if len(steps) == 1 and len(set(self._teams[agent])) == 1:
            return next(iter(steps.values())), dict.fromkeys(steps)
        lane = np.concatenate([self._lanes[role][step.lane] for role, step in steps.items()])
        order = np.argsort(lane)
        parts = [step.to_arrays() for step in steps.values()]
        arrays = {name: np.concatenate([part[name] for part in parts])[order] for name in parts[0]}
        rows = np.empty_like(order)
        rows[order] = np.arange(len(order))
        ends = np.cumsum([len(step.lane) for step in steps.values()])[:-1]
        return Step.from_arrays({**arrays, "lane": lane[order]}), dict(zip(steps, np.split(rows, ends), strict=True))
