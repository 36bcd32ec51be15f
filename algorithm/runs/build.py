"""Settings and a run folder become parts; a run folder becomes agents that play."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from algorithm.adapters.adapter import Adapter
from algorithm.adapters.unity.curriculum import SceneParameters
from algorithm.adapters.wrappers.adapter_wrapper import OnDemand
from algorithm.agents.agent import Agent
from algorithm.checkpointing.checkpoint import Checkpoint, CheckpointError
from algorithm.checkpointing.writer import CheckpointWriter
from algorithm.cli.display import make_line_display
from algorithm.config.effects import check_action_effects
from algorithm.config.loader import Settings
from algorithm.config.registry import find_class
from algorithm.config.role_agents import list_unknown_roles
from algorithm.errors import UserError
from algorithm.networks import FlatParameters
from algorithm.runs.faults import record_faults
from algorithm.runs.lessons import MonitorWithCurriculum
from algorithm.runs.make_env import count_evaluation_envs, describe_missing_limit, is_editor, make_adapter
from algorithm.runs.roles import check_specs
from algorithm.runs.run_folder import RunFolder
from algorithm.runs.seeding import EVALUATION, PLAY, PROCESS, TRAINING, draw_seed, make_seed_sequence, seed_process
from algorithm.runs.team_builder import ComponentsBuilder, make_agent
from algorithm.runs.torch_setup import choose_acting_device, configure_torch
from algorithm.runtimes.signals import Terminated
from algorithm.specs import Role
from algorithm.training.actor import Actor
from algorithm.training.components import TrainingComponents
from algorithm.training.divergence import DivergenceDetector
from algorithm.training.evaluator import EvaluationResult, Evaluator, get_mode_name
from algorithm.training.history import Counters, History
from algorithm.training.limits import Limits
from algorithm.training.metrics import MetricsWriter
from algorithm.training.monitor import ConfirmedBy, Monitor
from algorithm.training.progress import Progress
from algorithm.training.reporter import Reporter
from algorithm.training.timer import STARTING, Timer


@dataclass(frozen=True)
class RunResult:
    """How a run ended."""

    goal_reached: bool | None  # the goal, and it was confirmed; None without a goal
    counters: Counters
    returns: dict[str, float]  # of each role's last training episodes
    evaluation: dict[str, EvaluationResult] | None  # the last one
    best: Checkpoint | None  # on evaluation episodes
    confirmed_by: ConfirmedBy | None = None  # whose episodes confirmed the goal

    @classmethod
    def of(cls, monitor: Monitor) -> RunResult:
        """Return the result that a monitor has recorded."""
        goal_reached = None if monitor.limits.goal is None else monitor.confirmed
        best, confirmed_by = monitor.best.checkpoint, monitor.confirmed_by
        return cls(goal_reached, monitor.counters, monitor.mean_returns, monitor.evaluation, best, confirmed_by)


def train(
    settings: Settings,
    folder: RunFolder,
    log: Callable[[str], None],
    on_progress: Callable[[Progress], None] | None = None,
    on_end: Callable[[RunResult], None] = lambda result: None,
    on_checkpoint: Callable[[Checkpoint], None] = lambda checkpoint: None,
) -> RunResult:
    """Train in `folder`, from its newest checkpoint where it has one.

    `log` gets lines for the user. `on_progress` is told several times a second how the run stands; without it, there is a line
    for each row of metrics. Whatever ends the run, `on_end` hears how far it came; `on_checkpoint` hears of
    every checkpoint.
    """
    timer = Timer()
    configure_torch()
    base = settings.base
    seed_process(draw_seed(make_seed_sequence(base.seed, PROCESS)))
    checkpoints = folder.checkpoints(base.keep_checkpoints)
    checkpoint = checkpoints.latest(log)
    checkpoints.prepare(checkpoint, log, not folder.has_teams)
    counters = checkpoint.counters if checkpoint else Counters()
    scene_parameters = SceneParameters(settings.reset, lambda: counters.env_steps / base.max_step)
    teams = {name: role.teams for name, role in folder.read_roles().items()}
    adapter = make_adapter(
        settings,
        folder,
        base.n_envs,
        scene_parameters=scene_parameters,
        on_episode_end=scene_parameters.record_episode,
        teams=teams,
    )
    # Evaluation takes its own copies; as many as it plays episodes, since lanes of one process cost little.
    evaluation = OnDemand(
        lambda: make_adapter(
            settings,
            folder,
            count_evaluation_envs(settings),
            scene_parameters=scene_parameters,
            n_other_envs=base.n_envs,
        )
    )
    try:
        if note := describe_missing_limit(settings):
            log(note)
        training = _make_components(adapter, ComponentsBuilder(settings, folder, checkpoint, log), timer)
        evaluator = Evaluator(evaluation, lambda role: training.get(role, evaluation).agent, base.evaluate_greedy)
        history, limits = History(training, counters), make_limits(settings)
        if is_editor(settings) and limits.evaluates:
            log("nothing is evaluated, since there is one Unity editor; training episodes alone confirm a goal")
        writer = CheckpointWriter(checkpoints, training, log, on_checkpoint)
        monitor = Monitor(
            history,
            limits,
            Reporter(
                history,
                limits,
                MetricsWriter(folder.path, counters.env_steps, log),
                log,
                on_progress or make_line_display(log),
            ),
            # Seeds of the moment alone, so that a resumed run is evaluated as an unbroken one is.
            None
            if is_editor(settings)
            else lambda episodes: evaluator.play(
                episodes, draw_seed(make_seed_sequence(base.seed, EVALUATION, counters.env_steps))
            ),
            writer,
            checkpoints.best,
        )
        with record_faults(folder.path / "faults.log", log, counters):
            actor = Actor(training, draw_seed(make_seed_sequence(base.seed, TRAINING, counters.env_steps)))
            _check_roles(settings, folder, adapter, log)
            check_action_effects(settings, adapter.roles)
            writer.bind(actor, MonitorWithCurriculum(monitor, scene_parameters))
            if checkpoint:
                checkpoint.restore_run(actor, MonitorWithCurriculum(monitor, scene_parameters))
            folder.record_settings(settings.tree, counters.env_steps)
            divergence = DivergenceDetector(training, base.max_nonfinite_updates)
            timer.lap(STARTING)
            try:
                _run_to_end(find_class("runtime", base.runtime)(), training, actor, monitor, divergence, writer)
            finally:
                result = RunResult.of(monitor)
                on_end(result)
    finally:
        adapter.close()
        evaluation.close()
    return result


def _make_components(adapter: Adapter, builder: ComponentsBuilder, timer: Timer) -> TrainingComponents:
    """The teams of all roles that are known already: what cannot be built is known before anything begins."""
    training, checkpoint = (
        TrainingComponents(adapter, builder, timer=timer, grow_components=builder.grow),
        builder.checkpoint,
    )
    for role in dict.fromkeys([*adapter.roles, *(checkpoint.roles if checkpoint else [])]):
        training.by_role[role] = training.build(role, _check_role(builder.folder, adapter, role))
    return training


def _check_role(folder: RunFolder, adapter: Adapter, name: str) -> Role:
    """A role as the simulator offers it, or as it was if it has yet to appear. Raises UserError where they differ."""
    before, now = folder.read_roles().get(name), adapter.roles.get(name)
    if before and now:
        check_specs(folder.path, before, now)
    return now or before


def _check_roles(settings: Settings, folder: RunFolder, adapter: Adapter, log: Callable[[str], None]) -> None:
    """What is known only once the simulator has started. Raises UserError where a role is not what it was."""
    for role in adapter.roles:
        _check_role(folder, adapter, role)
    for line in list_unknown_roles(settings.tree["ma_config"], adapter.roles):
        log(line)


def _run_to_end(
    runtime,
    training: TrainingComponents,
    actor: Actor,
    monitor: Monitor,
    divergence: DivergenceDetector,
    writer: CheckpointWriter,
) -> None:
    """Raises CheckpointError where what a run that ended, or was interrupted, has learned could not be saved."""
    try:
        runtime.run(training, actor, monitor, divergence)
    except (KeyboardInterrupt, Terminated):
        writer.raise_if_failed()
        raise
    writer.raise_if_failed()


def make_limits(settings: Settings) -> Limits:
    """When a run does what."""
    base = settings.base
    goal = settings.goal.return_ if settings.goal else None
    return Limits(base.max_step, base.max_iter, base.log_every, base.save_every, base.evaluate_every, goal)


def play(
    settings: Settings,
    folder: RunFolder,
    episodes: int,
    greedy: bool,
    render: bool = False,
    ckpt: str | None = None,
    n_envs: int | None = None,
    log: Callable[[str], None] = print,
    new_episodes: bool = False,
) -> dict[str, EvaluationResult]:
    """Play whole episodes with the best weights of a run, or with the checkpoint that `ckpt` names.

    The default of `n_envs` is the number of environments of an evaluation. The seeds are those of the evaluation of
    these weights, which is therefore reproduced if mode, `episodes` and `n_envs` are the same; with `new_episodes`
    they differ. `log` receives a line with checkpoint and mode, and one for each checkpoint that is skipped.
    """
    configure_torch()
    checkpoint = folder.find_checkpoint(ckpt, log)
    env_steps = checkpoint.counters.env_steps
    log(f"playing {folder} after {env_steps:,} env steps, {get_mode_name(greedy)}")
    root = settings.base.seed
    seed = draw_seed(
        make_seed_sequence(root, PLAY) if new_episodes else make_seed_sequence(root, EVALUATION, env_steps)
    )
    agents: dict[str, Agent] = {}

    def get_agent(role: str) -> Agent:
        if role not in agents:
            if role not in checkpoint.roles:
                raise UserError(
                    f"the environment has a role {role!r} that had not appeared in {folder} after {env_steps:,} env "
                    "steps: train longer (--resume)"
                )
            agents[role] = load_agent(settings, folder, checkpoint, role, adapter.roles[role])
        return agents[role]

    adapter = make_adapter(settings, folder, n_envs or count_evaluation_envs(settings), render)
    try:
        return Evaluator(adapter, get_agent, greedy).play(episodes, seed)
    finally:
        adapter.close()


def load_agent(settings: Settings, folder: RunFolder, checkpoint: Checkpoint, name: str, role: Role) -> Agent:
    """The agent of one role with a checkpoint's weights, to play: nothing of it learns, or is noisy."""
    settings = settings.for_role(name)
    agent = make_agent(settings, folder, role, np.random.default_rng(make_seed_sequence(settings.base.seed, PLAY)))
    parameters = FlatParameters(
        {group: component.module for group, component in agent.groups.items()},
        agent.target_networks,
        agent.running_statistics(),
        choose_acting_device(settings, agent, role),
    )
    weights = checkpoint.weights(name)
    try:
        parameters.load(weights)
    except ValueError as error:
        raise CheckpointError(f"{checkpoint.folder}: {error}") from error
    agent.policy.eval()
    return agent


def check_network(settings: Settings, folder: RunFolder) -> None:
    """Raises CheckpointError where the run's newest checkpoint is of another network than the one in `folder`."""
    for name, role in folder.read_roles().items():
        load_agent(settings, folder, folder.find_latest(), name, role)
