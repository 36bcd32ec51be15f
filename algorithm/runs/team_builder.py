"""The teams of a run: each with its agent, replay, learner and explorer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from algorithm.agents.agent import Agent
from algorithm.checkpointing.checkpoint import Checkpoint
from algorithm.config.loader import Settings
from algorithm.config.registry import build_object, find_class
from algorithm.config.role_agents import check_teams
from algorithm.errors import UserError
from algorithm.networks.default_network import make_default_blueprint
from algorithm.replay import IN_MEMORY, Replay, make_file_allocator, make_sampler
from algorithm.runs.growth import grow_components
from algorithm.runs.memory_budget import MemoryBudget, check_batch, check_learning_starts, replay_size
from algorithm.runs.run_folder import RunFolder
from algorithm.runs.seeding import COMPONENTS, draw_seed, make_seed_sequence
from algorithm.runs.torch_setup import choose_placement
from algorithm.runs.user_code import explain_network_error
from algorithm.specs import Role, role_suffix
from algorithm.training.batch_scheduler import BatchScheduler
from algorithm.training.components import AgentComponents
from algorithm.training.learner import Learner


class ComponentsBuilder:
    """Builds the team of a role when it first appears, as it was in `checkpoint` if it was there."""

    def __init__(
        self, settings: Settings, folder: RunFolder, checkpoint: Checkpoint | None, log: Callable[[str], None]
    ):
        self.settings, self.folder, self.checkpoint = settings, folder, checkpoint
        self.log = log
        disk = folder.path if settings.replay.memory_map else None
        self.allocate = make_file_allocator(disk) if disk else IN_MEMORY
        self.budget = MemoryBudget(log, disk)

    def __call__(self, name: str, role: Role) -> AgentComponents:
        check_teams(name, role, self.settings.roles)
        settings, is_saved = self.settings.for_role(name), self.checkpoint and name in self.checkpoint.roles
        lanes, initial_lanes = self.checkpoint.lanes(name) if is_saved else (role.lanes, role.lanes)
        initial, role = role.with_lanes(initial_lanes), role.with_lanes(lanes)
        # The name is part of the seed, so that roles differ and their order of appearance does not matter.
        root = make_seed_sequence(settings.base.seed, COMPONENTS, *name.encode())
        agent_seed, scheduler_seed, replay_seed, network_seed = root.spawn(4)
        torch.manual_seed(draw_seed(network_seed))
        agent = make_agent(settings, self.folder, role, np.random.default_rng(agent_seed))
        schedule = agent.schedule
        size = replay_size(settings.replay, agent, role, initial_lanes)
        self.budget.reserve(name, size)
        check_batch(schedule, size)
        try:
            replay = Replay(
                settings.replay.capacity,
                role.lanes,
                schedule.rollout_length,
                schedule.sequence_length,
                np.random.default_rng(replay_seed),
                schedule.burn_in,
                schedule.warmup_rows,
                agent.stored_state_size,
                self.allocate,
                make_sampler(settings.replay),
                initial_lanes,
            )
        except ValueError as error:
            raise UserError(f"replay_config.{error}") from error
        check_learning_starts(settings, agent, lanes, initial_lanes)
        auxiliaries = {
            key: build_object("auxiliaries", key, value or {}) for key, value in settings.auxiliaries.items()
        }
        explorers = [build_object("explorer", key, value, initial) for key, value in settings.explorer.items()]
        for explorer in explorers if lanes > initial_lanes else []:
            explorer.grow(lanes, initial_lanes)
        placement = choose_placement(settings, agent, role)
        self.log(f"device{role_suffix(name)}: {placement}")
        learner = Learner(agent, role, auxiliaries, settings.base.max_step, placement)
        scheduler = BatchScheduler(replay, schedule, np.random.default_rng(scheduler_seed))
        components = AgentComponents(role, agent, scheduler, learner, *explorers)
        self.folder.add_role(name, role)
        if is_saved:
            self.checkpoint.restore(name, components)
        return components

    def grow(self, name: str, components: AgentComponents, role: Role) -> AgentComponents:
        """Add lanes to a team, up to those of `role`."""
        check_teams(name, role, self.settings.roles)
        return grow_components(name, components, role, self.settings, self.folder, self.budget)


def make_agent(settings: Settings, folder: RunFolder, role: Role, rng: np.random.Generator) -> Agent:
    """Return the agent of the settings, with the network of the run."""
    blueprint = folder.load_blueprint(settings) or make_default_blueprint(role)
    try:
        agent = find_class("algorithm", settings.base.algorithm)(settings.agent, blueprint, role, rng)
        agent.policy.run_dry_step(role.obs_specs)
        return agent
    except Exception as error:  # a network of the user may raise anything
        raise explain_network_error(folder.nn_from / settings.base.nn, error) from error
