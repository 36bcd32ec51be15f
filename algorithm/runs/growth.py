"""Agents that a simulator adds while a run trains."""

from __future__ import annotations

from algorithm.config.loader import Settings
from algorithm.errors import UserError
from algorithm.runs.memory_budget import Budget, check_learning_starts, replay_size
from algorithm.runs.run_folder import RunFolder
from algorithm.specs import Role, of_role
from algorithm.training.components import Team


def enlarge(name: str, team: Team, role: Role, settings: Settings, folder: RunFolder, budget: Budget) -> Team:
    """Add lanes to the team of the role `name`, up to those of `role`; report its replay, record the lanes on disk.

    Raises UserError if the replay does not fit into the free memory, holds no window, or never holds `learning_starts`
    rows.
    """
    replay, own = team.feed.replay, settings.of(name)
    initial_lanes = replay.initial_lanes if replay.rows else role.lanes
    before = replay_size(own.replay, team.agent, team.role, replay.initial_lanes)
    size = replay_size(own.replay, team.agent, role, initial_lanes)
    copied = before.bytes * replay.rows // max(before.rows, 1)
    budget.plan(name, size, copied, f"agents{of_role(name)}: {team.role.lanes} -> {role.lanes}; ")
    check_learning_starts(own, team.agent, role.lanes, initial_lanes)
    try:
        team = team.grow(role)
    except ValueError as error:
        raise UserError(f"replay_config.{error}") from error
    folder.add_role(name, role)
    return team
