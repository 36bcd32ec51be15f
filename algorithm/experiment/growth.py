"""Agents that a simulator adds while a run trains."""

from __future__ import annotations

from dataclasses import replace

from algorithm.experiment.errors import UserError
from algorithm.experiment.memory import Budget, replay_size
from algorithm.experiment.run_folder import RunFolder
from algorithm.experiment.settings import Settings
from algorithm.loop.parts import Team
from algorithm.specs import of_role


def enlarge(name: str, team: Team, lanes: int, settings: Settings, folder: RunFolder, budget: Budget) -> Team:
    """Add lanes to the team of role `name`, up to `lanes` lanes; report its replay, record the lanes in the run folder.

    Raises UserError if the replay does not fit into the free memory, or holds no window.
    """
    replay, role = team.feed.replay, replace(team.role, lanes=lanes)
    config = settings.of(name).replay
    before = replay_size(config, team.agent, team.role, replay.initial_lanes)
    size = replay_size(config, team.agent, role, replay.initial_lanes if replay.rows else lanes)
    copied = before.bytes * replay.rows // max(before.rows, 1)
    budget.plan(name, size, copied, f"agents{of_role(name)}: {team.role.lanes} -> {lanes}; ")
    try:
        team = team.grow(lanes)
    except ValueError as error:
        raise UserError(f"replay_config.{error}") from error
    folder.add_role(name, role)
    return team
