"""The agent of each role: `agent` in ma_config."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from algorithm.errors import UserError
from algorithm.specs import Role

AGENT_KEY = "agent"  # the key below a role in ma_config


def read_agents(ma_config: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
    """Return the agents that `ma_config` gives to roles, and the sections of each role that has any.

    Raises UserError for what is no name, and for sections of a role that another one's agent plays.
    """
    agents: dict[str, str] = {}
    sections: dict[str, dict[str, Any]] = {}
    for role, role_sections in ma_config.items():
        if not isinstance(role_sections, Mapping):
            raise UserError(f"ma_config.{role} is {role_sections!r}; it must be a mapping of sections")
        sections[role] = {key: value for key, value in role_sections.items() if key != AGENT_KEY}
        if AGENT_KEY in role_sections:
            agents[role] = role_sections[AGENT_KEY]
            if not isinstance(agents[role], str) or not agents[role]:
                raise UserError(f"ma_config.{role}.agent is {agents[role]!r}; it must be the name of an agent, as text")
    for role, agent in agents.items():
        if agent != role and sections[role]:
            raise UserError(
                f"ma_config.{role}.{next(iter(sections[role]))} has no effect: {role} is played by the agent {agent}, "
                f"whose settings are those of ma_config.{agent}"
            )
    return agents, {
        role: role_sections for role, role_sections in sections.items() if role_sections or role not in agents
    }


def check_teams(agent: str, role: Role, configured: Collection[str]) -> None:
    """Raise UserError for a team that is `configured` although an agent of another name plays it."""
    for team in role.count_lanes_by_team(agent):
        if team != agent and team in configured:
            raise UserError(
                f"ma_config.{team} has no effect: {team} is played by the agent {agent}; "
                f"write ma_config.{agent}, or give {team} an agent of its own: ma_config.{team}.agent={team}"
            )


def list_unknown_roles(ma_config: Mapping[str, Any], roles: Mapping[str, Role]) -> Iterator[str]:
    """Yield a line for each name in `ma_config` that no agent and no team has."""
    known = dict.fromkeys(name for agent, role in roles.items() for name in (agent, *role.count_lanes_by_team(agent)))
    for name in ma_config:
        if name not in known:
            yield f"ma_config.{name}: there is no such role so far; the roles are {', '.join(known)}"
