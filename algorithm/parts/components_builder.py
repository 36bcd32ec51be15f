"""The builder of the components of each role: its agent, replay, learner and explorer; and the memory they need."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from algorithm.agents.agent import Agent, DataSchedule
from algorithm.auxiliaries.auxiliary import Auxiliary
from algorithm.checkpointing.checkpoint import Checkpoint, CheckpointError
from algorithm.config.loader import Settings, check_teams
from algorithm.config.registry import build_object, find_class
from algorithm.config.sections import ReplayConfig
from algorithm.errors import UserError
from algorithm.exploration.explorer import Explorer
from algorithm.networks import FlatParameters
from algorithm.networks.default_network import make_default_blueprint
from algorithm.networks.flat_parameters import State
from algorithm.parts.demonstrations import make_demonstration_share, make_replay, pretrain, select_demonstrations
from algorithm.parts.make_env import Environments
from algorithm.parts.network_record import record_network
from algorithm.parts.provenance import measure_total_memory
from algorithm.parts.run_folder import RunFolder
from algorithm.parts.seeding import PLAY, RunSeeds, draw_seed
from algorithm.parts.torch_setup import choose_acting_device, choose_placement, describe_placement
from algorithm.parts.user_code import explain_network_error, load_blueprint
from algorithm.program import role_suffix
from algorithm.replay import (
    ACHIEVED,
    DESIRED,
    IN_MEMORY,
    SAMPLERS,
    Hindsight,
    Replay,
    ReplaySize,
    compute_replay_size,
    make_file_allocator,
    make_sampler,
)
from algorithm.specs import Role
from algorithm.training.actor import SLOTS_PER_LANE
from algorithm.training.batch_scheduler import BatchScheduler, OnPolicyScheduler, ReplayScheduler
from algorithm.training.components import AgentComponents
from algorithm.training.learner import Learner

MEMINFO = Path("/proc/meminfo")
MB = 10**6


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """What one of several processes that learn together does differently."""

    make_learner: Callable[..., Learner]  # returns the learner of a role, given the arguments of Learner
    is_main: bool  # whether this process writes the run folder
    has_environments: bool = True  # whether it acts, and so has experience
    worker: int = 0  # the number of its worker
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
        initialize: gives a role that is not in the checkpoint its first parameters, given its name, agent and learner.
    """

    def __init__(
        self,
        settings: Settings,
        folder: RunFolder,
        checkpoint: Checkpoint | None,
        log: Callable[[str], None],
        sharing: Sharing | None = None,
        seeds: RunSeeds | None = None,
        initialize: Callable[[str, Agent, Learner], None] | None = None,
    ):
        self.settings, self.folder, self.checkpoint, self.log = settings, folder, checkpoint, log
        self.sharing = sharing or Sharing(make_learner=Learner, is_main=True)
        self.seeds, self.initialize = seeds or RunSeeds(settings.base.seed), initialize
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
        agent_seed, scheduler_seed, replay_seed, *others = self.seeds.make_component_seeds(name).spawn(5)
        network_seed, demonstration_seed = map(draw_seed, others)
        torch.manual_seed(network_seed)
        agent = make_agent(settings, self.folder, role, np.random.default_rng(agent_seed))
        auxiliaries = make_auxiliaries(settings)
        demonstrations = select_demonstrations(settings, self.folder, name, role)
        if demonstrations:
            for each in auxiliaries.values():
                each.open_demonstrations = partial(make_replay, demonstrations, agent, demonstration_seed)
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
            share = make_demonstration_share(settings, agent, demonstrations, demonstration_seed)
            scheduler = ReplayScheduler(replay, agent.schedule, scheduler_rng, record_td_errors, share)
        else:
            scheduler = _make_on_policy_scheduler(settings, learner, role, initial_lanes, scheduler_rng)
        components = AgentComponents(role=role, agent=agent, scheduler=scheduler, learner=learner, explorer=explorer)
        if sharing.is_main:
            self.folder.add_role(name, role)
            record_network(self.folder.path, name, agent, placement)
        if checkpoint and sharing.is_main:
            checkpoint.restore_learner(name, learner)
        elif sharing.is_main:
            if self.initialize:
                self.initialize(name, agent, learner)
            pretrain(name, learner, self.log)
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
            n_records = components.learner.auxiliaries.n_records
            size = compute_agent_replay_size(settings.replay, agent, role, n_records, initial_lanes)
            prefix = f"agents{role_suffix(name)}: {components.role.lanes} -> {role.lanes}; "
            self.budget.reserve(name, size, replay.rows, prefix)
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
        agent, schedule, n_records = learner.agent, learner.agent.schedule, learner.auxiliaries.n_records
        size = compute_agent_replay_size(settings.replay, agent, role, n_records, initial_lanes)
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
                hindsight=self._make_hindsight(settings, agent, role),
                initial_lanes=initial_lanes,
            )
        except ValueError as error:
            raise UserError(f"replay_config.{error}") from error
        check_learning_starts(settings, agent, role.lanes, initial_lanes)
        return replay

    def _make_hindsight(self, settings: Settings, agent: Agent, role: Role) -> Hindsight | None:
        """Return what hindsight needs; None without it. Raises UserError if agent or environment exclude it."""
        count = settings.replay.hindsight
        if not count:
            return None
        if missing := {ACHIEVED, DESIRED} - role.obs_specs.keys():
            raise UserError(f"replay_config.hindsight needs the observations {', '.join(sorted(missing))}")
        if agent.needs_behavior:
            raise UserError(
                "replay_config.hindsight is for SAC with n_step 1 or use_n_step_is false: importance ratios are those "
                "of the goal for which an action was selected"
            )
        compute_rewards = Environments(self.settings, self.folder).open_goal_rewards()
        return Hindsight(share=count / (1 + count), compute_rewards=compute_rewards)


def _make_on_policy_scheduler(
    settings: Settings, learner: Learner, role: Role, lanes: int, rng: np.random.Generator
) -> OnPolicyScheduler:
    """Return the scheduler of an agent without a replay, whose role has `lanes` lanes at first.

    Raises UserError for too many minibatches, and for rollouts that do not fit into memory.
    """
    agent, has_memory, length = learner.agent, learner.agent.state_size > 0, learner.agent.schedule.rollout_length
    rows = SLOTS_PER_LANE * role.lanes * length
    size = compute_replay_size(rows, role, length, agent.state_size, agent.family.statistics_size)
    what = f"{settings.agent_section}.rollout_length: rollouts of {length:,} rows for {role.lanes} agents"
    _check_free_memory(what, size.bytes)
    parts = lanes if has_memory else lanes * length
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
    blueprint = load_blueprint(folder.nn_from, settings.base.nn, settings.nn)
    if blueprint is None:
        try:
            inspect.signature(make_default_blueprint).bind(role, **settings.nn)
            blueprint = make_default_blueprint(role, **settings.nn)
        except (TypeError, ValueError) as error:
            raise UserError(f"nn_config does not fit the default network, without an nn.py: {error}") from error
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


def load_agent(settings: Settings, folder: RunFolder, checkpoint: Checkpoint, name: str, role: Role) -> Agent:
    """Return the agent of a role, with the network in `folder` and the weights of a checkpoint, in evaluation mode.

    Raises:
        CheckpointError: the weights are damaged, or do not fit the network in `folder`.
    """
    return build_agent(settings, folder, name, role, checkpoint.weights(name), checkpoint.folder)


def build_agent(settings: Settings, folder: RunFolder, name: str, role: Role, weights: State, source: Path) -> Agent:
    """Return the agent of a role with weights of `source`, in evaluation mode.

    Raises CheckpointError if they do not fit the network in `folder`.
    """
    settings = get_agent_settings(settings, name)
    rng = np.random.default_rng(RunSeeds(settings.base.seed).make_sequence(PLAY))
    agent = make_agent(settings, folder, role, rng)
    parameters = FlatParameters(
        {group: parameter_group.module for group, parameter_group in agent.groups.items()},
        agent.target_networks,
        agent.running_statistics(),
        choose_acting_device(settings.base, agent, role),
    )
    try:
        parameters.load(weights)
    except ValueError as error:
        raise CheckpointError(f"{source}: {error}") from error
    agent.policy.eval()
    return agent


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


def compute_agent_replay_size(
    config: ReplayConfig, agent: Agent, role: Role, n_records: int, initial_lanes: int | None = None
) -> ReplaySize:
    """Return the size of an agent's replay.

    Auxiliaries store `n_records` values with each row; `initial_lanes` lanes (None: all) share the capacity.
    """
    return compute_replay_size(
        config.capacity,
        role,
        agent.schedule.rollout_length,
        agent.stored_state_size,
        agent.family.statistics_size,
        SAMPLERS[config.sampler].BYTES_PER_START,
        initial_lanes,
        n_records + (config.initial_priorities is not None),  # each row has the TD error of its initial priority
    )


def check_learning_starts(settings: Settings, agent: Agent, lanes: int, initial_lanes: int) -> None:
    """Raise UserError if the replay never holds `learning_starts` rows, or the run ends before it does.

    Of the `lanes` lanes of the role, the first `initial_lanes` share the capacity.
    """
    schedule, capacity, max_step = agent.schedule, settings.replay.capacity, settings.base.max_step
    chunk, start = schedule.rollout_length, schedule.learning_starts
    if schedule.replay_ratio == 0:
        return
    setting_name = f"{settings.agent_section}.learning_starts"
    rows = capacity // initial_lanes // chunk * chunk
    maximum = lanes * (rows - 1)  # one row of each lane stays free, for the observation after the newest row
    if start > maximum:
        needed = -(-(-(-start // lanes) + 1) // chunk) * chunk * initial_lanes
        raise UserError(
            f"{setting_name} is {start}, but replay_config.capacity {capacity} stores at most {maximum} rows "
            f"({lanes} lane(s) of {rows}, one of which stays free): set capacity to at least {needed}, "
            f"or learning_starts to at most {maximum}"
        )
    if max_step is not None and start > max_step and not schedule.on_policy_updates:
        raise UserError(
            f"{setting_name} is {start}, but base_config.max_step {max_step} ends the run before anything is learned: "
            f"set max_step above {start}, or learning_starts to at most {max_step}"
        )


class MemoryBudget:
    """The free memory of the machine, from which the replays of all roles are reserved before they are allocated."""

    def __init__(self, log: Callable[[str], None], disk: Path | None = None, workers: int = 1):
        """Measure the free memory, or the free space of `disk`, a folder; `workers` processes share it.

        `log` receives the sizes.
        """
        self.log, self.workers = log, workers
        self.free, self.kind = (shutil.disk_usage(disk).free, "disk") if disk else (measure_free_memory(), "memory")
        self._sizes: dict[str, ReplaySize] = {}  # by role

    @property
    def reserved_bytes(self) -> int:
        """Return the bytes of all reserved replays."""
        return sum(size.bytes for size in self._sizes.values()) * self.workers

    def reserve(self, role: str, size: ReplaySize, copied_rows: int = 0, prefix: str = "") -> None:
        """Reserve the replay of a role, in place of an earlier one of the role, and log its size after `prefix`.

        Of the earlier one, `copied_rows` are needed until they are copied. Raises UserError if all replays together do
        not fit.
        """
        earlier = self._sizes.get(role, size)
        copied_bytes = earlier.bytes * copied_rows // max(earlier.rows, 1)
        row = size.bytes / max(size.rows, 1)
        line = f"{size.rows:,} rows of {row:,.0f} bytes are {size.bytes / MB:,.1f} MB"
        if self.workers > 1:
            line += f" for each of {self.workers} workers"
        self.log(f"{prefix}replay{role_suffix(role)}: {line}")
        self._sizes[role] = size
        if self.free is not None and self.reserved_bytes + copied_bytes > self.free:
            left = max(0, (self.free - self.reserved_bytes - copied_bytes) / self.workers + size.bytes)
            raise UserError(
                f"{prefix}replay_config.capacity: {line}, but {left / MB:,.1f} MB of {self.kind} are free"
                f"{' for each' if self.workers > 1 else ''}; at most {int(left / row):,} rows fit"
            )


def check_batch(schedule: DataSchedule, replay: ReplaySize) -> None:
    """Raise UserError if a replayed batch, with rows of the same size as in the replay, does not fit into memory."""
    length = schedule.burn_in + schedule.sequence_length
    size = schedule.batch_size * length * replay.bytes / max(replay.rows, 1)
    if schedule.replay_ratio != 0:
        _check_free_memory(f"batch_size: {schedule.batch_size:,} sequences of {length:,} rows", size)


def _check_free_memory(what: str, size: float) -> None:
    """Raise UserError if a number of bytes, which `what` needs, is not free."""
    free = measure_free_memory()
    if free is not None and size > free:
        raise UserError(f"{what} are {size / MB:,.1f} MB, but {free / MB:,.1f} MB of memory are free")


def measure_free_memory() -> int | None:
    """Return the free memory in bytes; the total memory if only that is known; None if neither is known."""
    try:
        lines = MEMINFO.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return measure_total_memory()  # not Linux, or a very old kernel
