"""The explorer of a role, as its settings describe it."""

from __future__ import annotations

from collections.abc import Mapping

from algorithm.agents.agent import Agent
from algorithm.auxiliaries.auxiliary import Auxiliary
from algorithm.config.registry import build_object
from algorithm.errors import UserError
from algorithm.exploration.explorer import Explorer
from algorithm.parts.agent_config import AgentConfig
from algorithm.specs import Role


def make_explorer(
    config: AgentConfig,
    role: Role,
    lanes: int,
    agent: Agent,
    auxiliaries: Mapping[str, Auxiliary],
    part: tuple[int, int] = (0, 1),
) -> Explorer | None:
    """Return the explorer of the settings, if one is set, for the initial lanes of `role` and the lanes added since.

    Args:
        config: the settings of the role.
        role: the role with its initial lanes.
        lanes: the number of its lanes.
        agent: its agent.
        auxiliaries: its auxiliaries, by name.
        part: number of this process and number of processes, whose explorers divide the lanes of all of them.

    Raises:
        UserError: the explorer does not suit the agent or the auxiliaries.
    """
    process, processes = part
    for name, arguments in config.explorer.items():  # at most one
        explorer: Explorer = build_object("explorer", name, arguments, role.with_lanes(role.lanes * processes))
        if processes > 1:
            explorer.select_lanes(range(process, role.lanes * processes, processes))
        if lanes > role.lanes:
            explorer.grow(lanes, role.lanes)
        _connect_explorer(explorer, config, agent, auxiliaries)
        return explorer
    return None


def _connect_explorer(
    explorer: Explorer, config: AgentConfig, agent: Agent, auxiliaries: Mapping[str, Auxiliary]
) -> None:
    """Connect an explorer with its agent and auxiliaries. Raises UserError if it does not suit them."""
    novelties = {name: item.compute_novelty for name, item in auxiliaries.items() if item.compute_novelty}
    try:
        explorer.connect(agent, novelties)
    except ValueError as error:
        raise UserError(f"explorer.{next(iter(config.explorer))}: {error}") from error
