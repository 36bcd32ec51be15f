"""The teams of a run: each with its agent, replay, learner and explorer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from algorithm.agents.agent import Agent
from algorithm.checkpointing.checkpoint import Checkpoint
from algorithm.config.loader import Settings
from algorithm.config.registry import build, find
from algorithm.config.role_agents import check_teams
from algorithm.errors import UserError
from algorithm.replay import IN_MEMORY, Replay, in_files
from algorithm.runs.default_network import default_blueprint
from algorithm.runs.growth import enlarge
from algorithm.runs.make_sampler import make_sampler
from algorithm.runs.memory_budget import Budget, check_batch, check_learning_starts, replay_size
from algorithm.runs.run_folder import RunFolder
from algorithm.runs.seeding import TEAM, draw_seed, seeds
from algorithm.runs.torch_setup import placement
from algorithm.runs.user_code import blame_network
from algorithm.specs import Role, of_role
from algorithm.training.batch_scheduler import Feed
from algorithm.training.components import Team
from algorithm.training.learner import Learner


class TeamBuilder:
    """Builds the team of a role when it first appears, as it was in `checkpoint` if it was there."""

    def __init__(
        self, settings: Settings, folder: RunFolder, checkpoint: Checkpoint | None, say: Callable[[str], None]
    ):
        self.settings, self.folder, self.checkpoint = settings, folder, checkpoint
        self.say = say
        disk = folder.path if settings.replay.memory_map else None
        self.allocate = in_files(disk) if disk else IN_MEMORY
        self.budget = Budget(say, disk)

    def __call__(self, name: str, role: Role) -> Team:
        check_teams(name, role, self.settings.roles)
        settings, saved = self.settings.of(name), self.checkpoint and name in self.checkpoint.roles
        lanes, initial_lanes = self.checkpoint.lanes(name) if saved else (role.lanes, role.lanes)
        initial, role = role.with_lanes(initial_lanes), role.with_lanes(lanes)
        # The name is part of the seed, so that roles differ and their order of appearance does not matter.
        root = seeds(settings.base.seed, TEAM, *name.encode())
        agent_seed, feed_seed, replay_seed, network_seed = root.spawn(4)
        torch.manual_seed(draw_seed(network_seed))
        agent = make_agent(settings, self.folder, role, np.random.default_rng(agent_seed))
        schedule = agent.schedule
        size = replay_size(settings.replay, agent, role, initial_lanes)
        self.budget.plan(name, size)
        check_batch(schedule, size)
        try:
            replay = Replay(
                settings.replay.capacity,
                role.lanes,
                schedule.rollout_length,
                schedule.sequence_length,
                np.random.default_rng(replay_seed),
                schedule.burn_in,
                schedule.lead,
                agent.kept,
                self.allocate,
                make_sampler(settings.replay),
                initial_lanes,
            )
        except ValueError as error:
            raise UserError(f"replay_config.{error}") from error
        check_learning_starts(settings, agent, lanes, initial_lanes)
        auxiliaries = {key: build("auxiliaries", key, value or {}) for key, value in settings.auxiliaries.items()}
        explorers = [build("explorer", key, value, initial) for key, value in settings.explorer.items()]
        for explorer in explorers if lanes > initial_lanes else []:
            explorer.grow(lanes, initial_lanes)
        placed = placement(settings, agent, role)
        self.say(f"device{of_role(name)}: {placed}")
        learner = Learner(agent, role, auxiliaries, settings.base.max_step, placed)
        feed = Feed(replay, schedule, np.random.default_rng(feed_seed))
        team = Team(role, agent, feed, learner, *explorers)
        self.folder.add_role(name, role)
        if saved:
            self.checkpoint.restore(name, team)
        return team

    def enlarge(self, name: str, team: Team, role: Role) -> Team:
        """Add lanes to a team, up to those of `role`."""
        check_teams(name, role, self.settings.roles)
        return enlarge(name, team, role, self.settings, self.folder, self.budget)


def make_agent(settings: Settings, folder: RunFolder, role: Role, rng: np.random.Generator) -> Agent:
    """Return the agent of the settings, with the network of the run."""
    blueprint = folder.blueprint(settings) or default_blueprint(role)
    try:
        agent = find("algorithm", settings.base.algorithm)(settings.agent, blueprint, role, rng)
        agent.policy.try_step(role.obs_specs)
        return agent
    except Exception as error:  # a network of the user may raise anything
        raise blame_network(folder.nn_from / settings.base.nn, error) from error
