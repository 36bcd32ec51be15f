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
from algorithm.config.loader import Settings
from algorithm.config.registry import build_object, find_class
from algorithm.config.unused_settings import check_teams
from algorithm.errors import UserError
from algorithm.exploration.explorer import Explorer
from algorithm.networks.default_network import make_default_blueprint
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
        settings: the settings of the run.
        folder: the run folder, with the network; the roles are recorded there.
        checkpoint: the checkpoint from which roles that it contains are restored.
        log: receives lines for the user.
        sharing: what this process shares with others, whose builders are called for the same roles; None without them.
        seeds: the seeds; None for those of `base_config.seed`.
    """

    def __init__(
        self,
        settings: Settings,
        folder: RunFolder,
        checkpoint: Checkpoint | None,
        log: Callable[[str], None],
        sharing: Sharing | None = None,
        seeds: RunSeeds | None = None,
    ):
        self.settings, self.folder, self.checkpoint, self.log = settings, folder, checkpoint, log
        self.sharing = sharing or Sharing(make_learner=Learner, is_main=True)
        self.seeds = seeds or RunSeeds(settings.base.seed)
        disk = folder.path if settings.replay.memory_map else None
        self.allocate = make_file_allocator(disk) if disk else IN_MEMORY
        self.budget = MemoryBudget(log, disk, self.sharing.workers if self.sharing.is_main else 1)
        self._run_counts: list[np.ndarray] = []  # of the learners of all roles

    def __call__(self, name: str, role: Role) -> AgentComponents:
        """Return the components of a role, restored if they are in the checkpoint.

        Raises:
            CheckpointError: they cannot be restored.
            UserError: a setting does not fit the role, or the replay does not fit into the free memory.
        """
        check_teams(name, role, self.settings.roles)
        (settings, checkpoint), sharing = self._find_settings(name), self.sharing
        lanes, initial_lanes = checkpoint.lanes(name) if checkpoint else (role.lanes, role.lanes)
        initial_role, role = role.with_lanes(initial_lanes), role.with_lanes(lanes)
        agent_seed, scheduler_seed, replay_seed, network_seed = self.seeds.make_component_seeds(name).spawn(4)
        torch.manual_seed(draw_seed(network_seed))
        agent = make_agent(settings, self.folder, role, np.random.default_rng(agent_seed))
        auxiliaries = make_auxiliaries(settings)
        explorer = make_explorer(settings, initial_role, lanes, agent, auxiliaries, (sharing.worker, sharing.workers))
        placement = choose_placement(settings.base, agent, role)
        self.log(f"device{role_suffix(name)}: {describe_placement(placement)}")
        learner = sharing.make_learner(agent, role, auxiliaries, settings.base.max_step, placement)
        self._run_counts += learner.run_counts
        learner.run_counts = self._run_counts
        scheduler_rng = np.random.default_rng(scheduler_seed)
        scheduler: BatchScheduler
        if agent.schedule.uses_replay:
            replay = self._make_replay(name, settings, learner, role, initial_lanes, np.random.default_rng(replay_seed))
            record_td_errors = learner.record_td_errors if settings.replay.initial_priorities else None
            scheduler = ReplayScheduler(replay, agent.schedule, scheduler_rng, record_td_errors)
        else:
            check_rollout_memory(settings.agent_section, agent, role)
            scheduler = _make_on_policy_scheduler(settings, learner, initial_lanes, scheduler_rng)
        components = AgentComponents(role=role, agent=agent, scheduler=scheduler, learner=learner, explorer=explorer)
        if sharing.is_main:
            self.folder.add_role(name, role)
            record_network(self.folder.path, name, agent, placement)
        if checkpoint and sharing.is_main:
            checkpoint.restore_learner(name, learner)
        if checkpoint and sharing.has_environments:
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
        check_teams(name, role, self.settings.roles)
        settings, replay, agent = self._find_settings(name)[0], components.scheduler.replay, components.agent
        if replay:
            initial_lanes = replay.initial_lanes if replay.rows else role.lanes
            n_records = _count_records(settings, components.learner)
            old_role, old_lanes = components.role, replay.initial_lanes
            old_size = compute_agent_replay_size(settings.replay, agent, old_role, n_records, old_lanes)
            size = compute_agent_replay_size(settings.replay, agent, role, n_records, initial_lanes)
            copied_bytes = old_size.bytes * replay.rows // max(old_size.rows, 1)
            prefix = f"agents{role_suffix(name)}: {components.role.lanes} -> {role.lanes}; "
            self.budget.reserve(name, size, copied_bytes, prefix)
            check_learning_starts(settings, agent, role.lanes, initial_lanes)
        try:
            components = components.grow(role)
        except ValueError as error:
            raise UserError(f"replay_config.{error}") from error
        self.folder.add_role(name, role)
        return components

    def _find_settings(self, name: str) -> tuple[Settings, Checkpoint | None]:
        """Return the settings of a role, and the checkpoint if it contains the role.

        A saved replay keeps its capacity if the number of learners has changed.
        """
        settings = get_agent_settings(self.settings, name)
        checkpoint = self.checkpoint if self.checkpoint and name in self.checkpoint.roles else None
        if checkpoint and (capacity := checkpoint.capacity(name)):
            settings = replace(settings, replay=settings.replay.model_copy(update={"capacity": capacity}))
        return settings, checkpoint

    def _make_replay(
        self, name: str, settings: Settings, learner: Learner, role: Role, initial_lanes: int, rng: np.random.Generator
    ) -> Replay:
        """Return the replay of a role. Raises UserError if it does not fit into memory, or the agent's schedule."""
        agent, schedule = learner.agent, learner.agent.schedule
        size = compute_agent_replay_size(settings.replay, agent, role, _count_records(settings, learner), initial_lanes)
        self.budget.reserve(name, size)
        check_batch(schedule, size)
        try:
            replay = Replay(
                capacity=settings.replay.capacity,
                lanes=role.lanes,
                chunk=schedule.rollout_length,
                length=schedule.sequence_length,
                rng=rng,
                burn_in=schedule.burn_in,
                warmup_rows=schedule.warmup_rows,
                stored_state_size=agent.stored_state_size,
                allocate=self.allocate,
                sampler=make_sampler(settings.replay),
                initial_lanes=initial_lanes,
            )
        except ValueError as error:
            raise UserError(f"replay_config.{error}") from error
        check_learning_starts(settings, agent, role.lanes, initial_lanes)
        return replay


def _count_records(settings: Settings, learner: Learner) -> int:
    """Return the number of values that the replay stores with each row, of auxiliaries and for initial priorities."""
    return learner.auxiliaries.n_records + (settings.replay.initial_priorities is not None)


def _make_on_policy_scheduler(
    settings: Settings, learner: Learner, lanes: int, rng: np.random.Generator
) -> OnPolicyScheduler:
    """Return the scheduler of an agent without a replay. Raises UserError for too many minibatches."""
    agent, has_memory = learner.agent, learner.agent.state_size > 0
    parts = lanes if has_memory else lanes * agent.schedule.rollout_length
    if agent.schedule.minibatches > parts:
        name = "sequences (one for each agent, since the network has a memory)" if has_memory else "steps"
        raise UserError(
            f"{settings.agent_section}.minibatches is {agent.schedule.minibatches}, but a rollout has {parts} {name}: "
            f"set it to at most {parts}, or increase base_config.n_envs"
        )
    return OnPolicyScheduler(agent.schedule, learner.prepare, has_memory=has_memory, initial_lanes=lanes, rng=rng)


def get_agent_settings(settings: Settings, role: str) -> Settings:
    """Return the settings of the agent of a role; with several learners, of the agent of each of them.

    The batches of all learners form one batch: a round has a rollout of each learner, which `replay_ratio` batches
    follow in a run with one learner.
    """
    settings, learners = settings.for_role(role), settings.n_learners
    base, agent, replay = settings.base, settings.agent, settings.replay
    if base.device == "auto" and (base.has_workers or learners > 1):
        base = base.model_copy(update={"device": "cpu"})
    if learners > 1:
        replay = replay.model_copy(update={"capacity": replay.capacity // learners})
        if agent.uses_replay:
            agent = replace(
                agent,
                batch_size=agent.batch_size // learners,
                replay_ratio=agent.replay_ratio and agent.replay_ratio * learners,  # None: in proportion to the rows
                learning_starts=-(-agent.learning_starts // learners),
            )
    return replace(settings, base=base, agent=agent, replay=replay)


def make_agent(settings: Settings, folder: RunFolder, role: Role, rng: np.random.Generator) -> Agent:
    """Return an agent with the network of a run folder, or with the default network; `rng` draws its samples.

    Raises UserError if the network cannot be built or does not fit the role.
    """
    blueprint = folder.load_blueprint(settings.base.nn, settings.nn) or make_default_blueprint(role)
    agent_class: Any = find_class("algorithm", settings.base.algorithm)
    arguments: dict[str, Any] = {}
    if agent_class.supports_streams(settings.agent):
        auxiliaries = make_auxiliaries(settings)
        arguments["streams"] = {name: item.stream for name, item in auxiliaries.items() if item.stream}
    try:
        agent: Agent = agent_class(settings.agent, blueprint, role, rng, **arguments)
        agent.policy.run_dry_step(role.obs_specs)
        return agent
    except Exception as error:  # the code of a user's network may raise any error
        raise explain_network_error(folder.nn_from / settings.base.nn, error) from error


def make_auxiliaries(settings: Settings) -> dict[str, Auxiliary]:
    """Return the auxiliaries of the settings by name, without their modules. Raises UserError for invalid settings."""
    return {name: build_object("auxiliaries", name, values) for name, values in settings.auxiliaries.items()}


def make_explorer(
    settings: Settings,
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
    for name, arguments in settings.explorer.items():  # at most one
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
