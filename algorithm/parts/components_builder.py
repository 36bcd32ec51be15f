"""The builder of the components of each role: its agent, replay, learner and explorer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from algorithm.agents.agent import Agent
from algorithm.auxiliaries.auxiliary import Auxiliary
from algorithm.checkpointing.checkpoint import Checkpoint
from algorithm.config.registry import build_object
from algorithm.config.unused_settings import check_teams
from algorithm.errors import UserError
from algorithm.exploration.explorer import Explorer
from algorithm.networks.default_network import make_default_blueprint
from algorithm.parts.agent_config import AgentConfig, AgentConfigs
from algorithm.parts.memory_budget import (
    MemoryBudget,
    check_batch,
    check_learning_starts,
    check_rollout_memory,
    compute_agent_replay_size,
)
from algorithm.parts.network_record import record_network
from algorithm.parts.run_folder import RunFolder
from algorithm.parts.seeding import RunSeeds, draw_seed
from algorithm.parts.torch_setup import choose_placement, describe_placement
from algorithm.parts.user_code import explain_network_error
from algorithm.program import role_suffix
from algorithm.replay import IN_MEMORY, Replay, make_file_allocator, make_sampler
from algorithm.specs import Role
from algorithm.training.batch_scheduler import BatchScheduler, OnPolicyScheduler, ReplayScheduler
from algorithm.training.components import AgentComponents
from algorithm.training.learner import Learner


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """What one of several processes that learn together does differently.

    Attributes:
        make_learner: returns the learner of a role, given the arguments of Learner.
        is_main: whether this process writes the run folder.
        has_environments: whether it acts, and so has experience.
        worker: the number of its worker.
        workers: the number of workers.
    """

    make_learner: Callable[..., Learner]
    is_main: bool
    has_environments: bool = True
    worker: int = 0
    workers: int = 1


class ComponentsBuilder:
    """A builder of the components of a role, which is called when the role first appears.

    Args:
        configs: the settings of each role's agent.
        folder: the run folder, with the network; the roles are recorded there.
        checkpoint: the checkpoint from which roles that it contains are restored.
        log: receives lines for the user.
        sharing: what this process shares with others, whose builders are called for the same roles; None without them.
        seeds: the seeds; None for those of `base_config.seed`.
    """

    def __init__(
        self,
        configs: AgentConfigs,
        folder: RunFolder,
        checkpoint: Checkpoint | None,
        log: Callable[[str], None],
        sharing: Sharing | None = None,
        seeds: RunSeeds | None = None,
    ):
        self.configs, self.folder, self.checkpoint, self.log = configs, folder, checkpoint, log
        self.sharing, self.seeds = sharing, seeds or RunSeeds(configs.default.seed)
        disk = folder.path if configs.default.replay.memory_map else None
        self.allocate = make_file_allocator(disk) if disk else IN_MEMORY
        self._is_main = sharing is None or sharing.is_main
        self.budget = MemoryBudget(log, disk, sharing.workers if sharing and self._is_main else 1)
        self._run_counts: list[np.ndarray] = []  # of the learners of all roles

    def __call__(self, name: str, role: Role) -> AgentComponents:
        """Return the components of a role, restored if they are in the checkpoint.

        Raises:
            CheckpointError: they cannot be restored.
            UserError: a setting does not fit the role, or the replay does not fit into the free memory.
        """
        check_teams(name, role, self.configs.by_role)
        config = self._get_config(name)
        checkpoint = self._find_checkpoint(name)
        lanes, initial_lanes = checkpoint.lanes(name) if checkpoint else (role.lanes, role.lanes)
        initial_role, role = role.with_lanes(initial_lanes), role.with_lanes(lanes)
        agent_seed, scheduler_seed, replay_seed, network_seed = self.seeds.make_component_seeds(name).spawn(4)
        torch.manual_seed(draw_seed(network_seed))
        agent = make_agent(config, self.folder, role, np.random.default_rng(agent_seed))
        auxiliaries = make_auxiliaries(config)
        sharing = self.sharing
        worker = (sharing.worker, sharing.workers) if sharing else (0, 1)
        explorer = make_explorer(config, initial_role, lanes, agent, auxiliaries, worker)
        placement = choose_placement(config.placement, agent, role)
        self.log(f"device{role_suffix(name)}: {describe_placement(placement)}")
        make_learner = sharing.make_learner if sharing else Learner
        learner = make_learner(agent, role, auxiliaries, config.max_step, placement)
        self._run_counts += learner.run_counts
        learner.run_counts = self._run_counts
        scheduler_rng = np.random.default_rng(scheduler_seed)
        scheduler: BatchScheduler
        if agent.schedule.uses_replay:
            replay = self._make_replay(name, config, learner, role, initial_lanes, np.random.default_rng(replay_seed))
            record_td_errors = learner.record_td_errors if config.replay.initial_priorities else None
            scheduler = ReplayScheduler(replay, agent.schedule, scheduler_rng, record_td_errors)
        else:
            check_rollout_memory(config.section, agent, role)
            scheduler = _make_on_policy_scheduler(config, learner, initial_lanes, scheduler_rng)
        components = AgentComponents(role=role, agent=agent, scheduler=scheduler, learner=learner, explorer=explorer)
        if self._is_main:
            self.folder.add_role(name, role)
            record_network(self.folder.path, name, agent, placement)
        if checkpoint and self._is_main:
            checkpoint.restore_learner(name, learner)
        if checkpoint and (sharing is None or sharing.has_environments):
            checkpoint.restore_experience(name, components)
        learner.synchronize()
        return components

    def grow(self, name: str, components: AgentComponents, role: Role) -> AgentComponents:
        """Add lanes to the components of a role, until they have the lanes of `role`, and record the role.

        Returns:
            The components that replace `components`.

        Raises:
            UserError: the replay does not fit into the free memory, is too small for a sequence, or never holds
                `learning_starts` rows.
        """
        check_teams(name, role, self.configs.by_role)
        config, replay, agent = self._get_config(name), components.scheduler.replay, components.agent
        if replay:
            initial_lanes = replay.initial_lanes if replay.rows else role.lanes
            n_records = _count_records(config, components.learner)
            old_role, old_lanes = components.role, replay.initial_lanes
            old_size = compute_agent_replay_size(config.replay, agent, old_role, n_records, old_lanes)
            size = compute_agent_replay_size(config.replay, agent, role, n_records, initial_lanes)
            copied_bytes = old_size.bytes * replay.rows // max(old_size.rows, 1)
            prefix = f"agents{role_suffix(name)}: {components.role.lanes} -> {role.lanes}; "
            self.budget.reserve(name, size, copied_bytes, prefix)
            check_learning_starts(config, agent, role.lanes, initial_lanes)
        try:
            components = components.grow(role)
        except ValueError as error:
            raise UserError(f"replay_config.{error}") from error
        self.folder.add_role(name, role)
        return components

    def _find_checkpoint(self, name: str) -> Checkpoint | None:
        """Return the checkpoint if it contains a role."""
        return self.checkpoint if self.checkpoint and name in self.checkpoint.roles else None

    def _get_config(self, name: str) -> AgentConfig:
        """Return the settings of a role; a saved replay keeps its capacity if the number of learners has changed."""
        config, checkpoint = self.configs.for_role(name), self._find_checkpoint(name)
        if checkpoint and (capacity := checkpoint.capacity(name)):
            config = replace(config, replay=config.replay.model_copy(update={"capacity": capacity}))
        return config

    def _make_replay(
        self, name: str, config: AgentConfig, learner: Learner, role: Role, initial_lanes: int, rng: np.random.Generator
    ) -> Replay:
        """Return the replay of a role. Raises UserError if it does not fit into memory, or the agent's schedule."""
        agent, schedule = learner.agent, learner.agent.schedule
        size = compute_agent_replay_size(config.replay, agent, role, _count_records(config, learner), initial_lanes)
        self.budget.reserve(name, size)
        check_batch(schedule, size)
        try:
            replay = Replay(
                capacity=config.replay.capacity,
                lanes=role.lanes,
                chunk=schedule.rollout_length,
                length=schedule.sequence_length,
                rng=rng,
                burn_in=schedule.burn_in,
                warmup_rows=schedule.warmup_rows,
                stored_state_size=agent.stored_state_size,
                allocate=self.allocate,
                sampler=make_sampler(config.replay),
                initial_lanes=initial_lanes,
            )
        except ValueError as error:
            raise UserError(f"replay_config.{error}") from error
        check_learning_starts(config, agent, role.lanes, initial_lanes)
        return replay


def _count_records(config: AgentConfig, learner: Learner) -> int:
    """Return the number of values that the replay stores with each row, of auxiliaries and for initial priorities."""
    return learner.auxiliaries.n_records + (config.replay.initial_priorities is not None)


def _make_on_policy_scheduler(
    config: AgentConfig, learner: Learner, lanes: int, rng: np.random.Generator
) -> OnPolicyScheduler:
    """Return the scheduler of an agent without a replay. Raises UserError for too many minibatches."""
    agent, has_memory = learner.agent, learner.agent.state_size > 0
    parts = lanes if has_memory else lanes * agent.schedule.rollout_length
    if agent.schedule.minibatches > parts:
        name = "sequences (one for each agent, since the network has a memory)" if has_memory else "steps"
        raise UserError(
            f"{config.section}.minibatches is {agent.schedule.minibatches}, but a rollout has {parts} {name}: "
            f"set it to at most {parts}, or increase base_config.n_envs"
        )
    return OnPolicyScheduler(agent.schedule, learner.prepare, has_memory=has_memory, initial_lanes=lanes, rng=rng)


def make_agent(config: AgentConfig, folder: RunFolder, role: Role, rng: np.random.Generator) -> Agent:
    """Return an agent with the network of a run folder, or with the default network; `rng` draws its samples.

    Raises UserError if the network cannot be built or does not fit the role.
    """
    blueprint = folder.load_blueprint(config.network_file, config.network_arguments) or make_default_blueprint(role)
    make: Callable[..., Agent] = config.make_agent
    arguments: dict[str, Any] = {}
    if config.make_agent.supports_streams(config.settings):
        auxiliaries = make_auxiliaries(config)
        arguments["streams"] = {name: item.stream for name, item in auxiliaries.items() if item.stream}
    try:
        agent = make(config.settings, blueprint, role, rng, **arguments)
        agent.policy.run_dry_step(role.obs_specs)
        return agent
    except Exception as error:  # the code of a user's network may raise any error
        raise explain_network_error(folder.nn_from / config.network_file, error) from error


def make_auxiliaries(config: AgentConfig) -> dict[str, Auxiliary]:
    """Return the auxiliaries of the settings by name, without their modules. Raises UserError for invalid settings."""
    return {name: build_object("auxiliaries", name, settings) for name, settings in config.auxiliaries.items()}


def make_explorer(
    config: AgentConfig,
    role: Role,
    lanes: int,
    agent: Agent,
    auxiliaries: Mapping[str, Auxiliary],
    part: tuple[int, int] = (0, 1),
) -> Explorer | None:
    """Return the explorer of the settings, if one is set, for the initial lanes of `role` and the lanes added since.

    `role` has its initial lanes only. `part` is the number of this process and the number of processes, whose explorers
    divide the lanes of all of them. Raises UserError if the explorer does not suit the agent or the auxiliaries.
    """
    process, processes = part
    for name, arguments in config.explorer.items():  # at most one
        explorer: Explorer = build_object("explorer", name, arguments, role.with_lanes(role.lanes * processes))
        if processes > 1:
            explorer.select_lanes(range(process, role.lanes * processes, processes))
        if lanes > role.lanes:
            explorer.grow(lanes, role.lanes)
        try:
            explorer.connect(
                agent, {name: item.compute_novelty for name, item in auxiliaries.items() if item.compute_novelty}
            )
        except ValueError as error:
            raise UserError(f"explorer.{name}: {error}") from error
        return explorer
    return None
