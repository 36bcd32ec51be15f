"""Agents that a simulator adds while a run trains."""

from __future__ import annotations

from algorithm.config.loader import Settings
from algorithm.errors import UserError
from algorithm.runs.memory_budget import MemoryBudget, check_learning_starts, replay_size
from algorithm.runs.run_folder import RunFolder
from algorithm.specs import Role, role_suffix
from algorithm.training.components import AgentComponents


def grow_components(
    name: str, components: AgentComponents, role: Role, settings: Settings, folder: RunFolder, budget: MemoryBudget
) -> AgentComponents:
    """Add lanes to the team of the role `name`, up to those of `role`; report its replay, record the lanes on disk.

    Raises UserError if the replay does not fit into the free memory, holds no window, or never holds `learning_starts`
    rows.
    """
    replay, role_settings = components.scheduler.replay, settings.for_role(name)
    initial_lanes = replay.initial_lanes if replay.rows else role.lanes
    old_size = replay_size(role_settings.replay, components.agent, components.role, replay.initial_lanes)
    size = replay_size(role_settings.replay, components.agent, role, initial_lanes)
    copied_bytes = old_size.bytes * replay.rows // max(old_size.rows, 1)
    budget.reserve(name, size, copied_bytes, f"agents{role_suffix(name)}: {components.role.lanes} -> {role.lanes}; ")
    check_learning_starts(role_settings, components.agent, role.lanes, initial_lanes)
    try:
        components = components.grow(role)
    except ValueError as error:
        raise UserError(f"replay_config.{error}") from error
    folder.add_role(name, role)
    return components
