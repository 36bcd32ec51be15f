"""Training of a run: its parts are built from its settings, in the order in which they are used, and run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from math import inf
from time import process_time

from algorithm.adapters.curriculum import EnvironmentParameters
from algorithm.checkpointing.checkpoint import Checkpoint, Stateful
from algorithm.checkpointing.store import BestCheckpoint, CheckpointStore, CheckpointWriter
from algorithm.config.loader import Settings, check_effects, find_failure, list_unknown_roles
from algorithm.config.registry import find_class
from algorithm.config.sections import BaseConfig, count_evaluation_episodes
from algorithm.config.yaml_layers import format_yaml, iterate_settings
from algorithm.errors import UserError, redact_logins, summarize_error
from algorithm.parts import run_folder
from algorithm.parts.components_builder import ComponentsBuilder
from algorithm.parts.make_env import Environments, describe_missing_limit
from algorithm.parts.opponents import OpponentPool, add_opponents
from algorithm.parts.provenance import record_session
from algorithm.parts.run_folder import RunFolder
from algorithm.parts.seeding import CONFIRMATION, EVALUATION, RunSeeds
from algorithm.parts.torch_setup import configure_torch
from algorithm.parts.warm_start import WarmStart
from algorithm.processes.fleet import Fleet, list_learner_notes
from algorithm.processes.services import forbid_new_role
from algorithm.program import get_install_command, metric_suffix
from algorithm.runs.callbacks import Callback, CallbackList, RunResult
from algorithm.runs.faults import describe_end, record_faults
from algorithm.runs.playing import VideoRecorder, prepare_videos
from algorithm.runs.results import make_record
from algorithm.runs.trained_agent import copy_agent
from algorithm.specs import Role
from algorithm.tracking.trackers import TensorBoard, TrackedRun, TrackerList, report_failure
from algorithm.training.components import DivergenceDetector, TrainingComponents
from algorithm.training.evaluator import EpisodePlan
from algorithm.training.metrics import MetricsWriter
from algorithm.training.monitor import Monitor
from algorithm.training.progress import Counters, History, Limits
from algorithm.training.reporter import Reporter
from algorithm.training.signals import Terminated
from algorithm.training.timer import STARTING, Timer

Log = Callable[[str], None]
NO_SETTINGS_OF_A_RUN = ("tune", "population_config", "tracker_config")  # sections that do not change a run


def train(
    settings: Settings, folder: RunFolder, log: Log, callbacks: Sequence[Callback] = (), pause_at: int | None = None
) -> RunResult:
    """Train in a run folder, from its newest checkpoint if it has one.

    Args:
        settings: the settings of the run.
        folder: the run folder, which is locked by the caller.
        log: receives lines for the user.
        callbacks: receive the events of the run; a display is one of them.
        pause_at: env steps of the run at which it pauses, after an evaluation and with a checkpoint; None: never.

    Raises:
        CheckpointError: no checkpoint can be read, or the final one could not be written.
        Diverged: too many successive updates were skipped.
        EnvironmentStartError: the environment does not start.
        EnvironmentCrashed: it crashed more often than `max_env_restarts`.
        UserError: a setting does not fit the run.
    """
    base, seeds = settings.base, RunSeeds(settings.base.seed)
    timer = Timer(process_time) if base.is_on_cluster else Timer()  # collectors report their CPU seconds themselves
    environments, events = Environments(settings, folder), CallbackList(callbacks)
    limits, pool = _make_limits(settings, pause_at), add_opponents(environments, settings, folder)
    fleet_class: type[Fleet] = find_class("runtime", base.runtime)
    fleet_class.check(settings)
    prepare_videos(settings, environments, limits.evaluates)
    configure_torch()
    seeds.seed_process()
    store, checkpoint, warm_start = _prepare_start(folder, base, log)
    counters = checkpoint.counters if checkpoint else Counters()
    with ExitStack() as stack:
        parameters = _make_parameters(settings, counters, limits, pool)
        fleet = stack.enter_context(closing(fleet_class(settings, folder, environments, parameters, counters)))
        fleet.open(limits.evaluates)
        eval_adapter = stack.enter_context(closing(environments.defer_evaluation(parameters, settings.n_actors)))
        _log_notes(settings, environments, limits, checkpoint, log)
        builder = ComponentsBuilder(settings, folder, checkpoint, log, fleet.sharing, initialize=warm_start)
        training = _build_components(fleet, builder, timer, pool)
        history = History(training, counters)
        count_faults = stack.enter_context(record_faults(folder.path / "faults.log", log, counters))
        fleet.start(training, checkpoint)
        _check_roles(settings, folder, fleet.adapter.roles, log)
        states: dict[str, Stateful] = {"history": history, "curriculum": parameters, **pool.parts}
        writer = CheckpointWriter(store, fleet.save, states, log, events.on_checkpoint)
        evaluations = fleet.make_evaluations(eval_adapter, partial(_plan_episodes, limits, seeds, counters))
        events.callbacks.append(VideoRecorder(settings, environments, training, counters, folder, log))
        trackers = open_trackers(settings, folder, counters.env_steps, fleet.adapter.roles, stack)
        metrics = MetricsWriter(folder.path, counters.env_steps, log, trackers)
        reporter = Reporter(
            history, limits, metrics, log, events.on_progress, base.histograms, count_faults, fleet.collect_metrics
        )
        events.set_agents(partial(copy_agent, settings, folder, training))
        monitor = Monitor(history, limits, reporter, evaluations, writer, store.best, events)
        if checkpoint:
            checkpoint.restore_states(states)
            fleet.restore(checkpoint)
        folder.record_settings(settings.tree, counters.env_steps)
        record_session(folder.path, base, counters.env_steps)
        timer.lap(STARTING)
        end: tuple[int, str | None] = (0, None)
        try:
            _run_to_end(fleet, base.max_nonfinite_updates, monitor, writer)
        except BaseException as error:
            end = describe_end(error)
            raise
        finally:
            result = _make_result(folder, monitor, store.best, *end)
            trackers.finish(make_record(result))
            events.on_end(result)
    return result


def _log_notes(
    settings: Settings, environments: Environments, limits: Limits, checkpoint: Checkpoint | None, log: Log
) -> None:
    """Log what differs from the settings in a run that is about to start, whose environments are open."""
    if missing_limit := describe_missing_limit(settings.base):
        log(missing_limit)
    obstacle = environments.find_evaluation_obstacle()
    if obstacle and limits.evaluates:
        log(f"the run has no evaluations, since {obstacle}; training episodes alone confirm a goal")
    reached = limits.list_reached(checkpoint.counters) if checkpoint else []
    for note in (*list_learner_notes(settings, checkpoint), *reached):
        log(note)


def _make_limits(settings: Settings, pause_at: int | None) -> Limits:
    """Return the limits, the intervals and the goal of a run, which pauses at the env steps `pause_at`."""
    base = settings.base
    return Limits(
        max_step=base.max_step,
        max_iter=base.max_iter,
        log_every=base.log_every,
        save_every=base.save_every,
        evaluate_every=base.evaluate_every,
        goal=settings.goal.return_ if settings.goal else None,
        evaluation_episodes=count_evaluation_episodes(settings.goal),
        pause_at=pause_at,
    )


def _prepare_start(
    folder: RunFolder, base: BaseConfig, log: Log
) -> tuple[CheckpointStore, Checkpoint | None, WarmStart | None]:
    """Return the checkpoints of a run, prepared for training; the newest, if any; otherwise its warm start, if any."""
    store = folder.checkpoints(base.keep_checkpoints)
    checkpoint = store.latest(log)
    is_warm = checkpoint is None and base.initialize_from is not None
    warm_start = WarmStart(str(base.initialize_from), folder.path.parent, log) if is_warm else None
    store.prepare(checkpoint, log, not folder.has_teams)
    return store, checkpoint, warm_start


def _make_parameters(
    settings: Settings, counters: Counters, limits: Limits, pool: OpponentPool
) -> EnvironmentParameters:
    """Return the environment parameters, whose lessons end by returns, by env steps or by ratings."""
    return EnvironmentParameters(settings.reset, lambda: counters.env_steps / (limits.max_step or inf), pool.get_rating)


def _build_components(fleet: Fleet, builder: ComponentsBuilder, timer: Timer, pool: OpponentPool) -> TrainingComponents:
    """Build the components of all roles that are known, so that errors in them are raised before training starts."""
    adapter, build = fleet.adapter, forbid_new_role if fleet.sharing else builder
    training = TrainingComponents(adapter, build, timer=timer, grow_components=builder.grow)
    saved = builder.checkpoint.roles if builder.checkpoint else []
    recorded = builder.folder.read_roles()  # after damage it may lack roles, which are built when they appear
    roles = {**adapter.roles, **{name: recorded[name] for name in saved if name in recorded.keys() - adapter.roles}}
    for name, role in roles.items():
        builder.folder.check_role(name, role)
    with fleet.build(roles, builder.checkpoint):
        for name, role in roles.items():
            training.by_role[name] = builder(name, role)
    pool.connect(training)
    return training


def _check_roles(settings: Settings, folder: RunFolder, roles: Mapping[str, Role], log: Log) -> None:
    """Check the roles of an environment that has started, and the settings of roles."""
    for name, role in roles.items():
        folder.check_role(name, role)
    for line in list_unknown_roles(settings.tree["ma_config"], roles):
        log(line)
    check_effects(settings, settings.command_line_layers, roles)


def _plan_episodes(limits: Limits, seeds: RunSeeds, counters: Counters, confirmation_episodes: int) -> EpisodePlan:
    """Return the episodes of an evaluation that starts now, whose seeds depend on the env steps only."""
    return EpisodePlan(
        episodes=limits.evaluation_episodes,
        seed=seeds.get_seed(EVALUATION, counters.env_steps),
        confirmation_episodes=confirmation_episodes,
        confirmation_seed=seeds.get_seed(CONFIRMATION, counters.env_steps),
    )


def _run_to_end(fleet: Fleet, max_nonfinite_updates: int, monitor: Monitor, writer: CheckpointWriter) -> None:
    """Run the fleet. Raises CheckpointError if the final checkpoint of a run that ended or was interrupted failed."""
    try:
        fleet.run(monitor, DivergenceDetector(fleet.training, max_nonfinite_updates))
    except (KeyboardInterrupt, Terminated):
        writer.raise_if_failed()
        raise
    writer.raise_if_failed()


def _make_result(
    folder: RunFolder, monitor: Monitor, best: BestCheckpoint, status: int, failure: str | None
) -> RunResult:
    return RunResult(
        folder=folder.path,
        goal_reached=None if monitor.limits.goal is None else bool(monitor.confirmed_by),
        counters=monitor.counters,
        returns={name: recent.mean for name, recent in monitor.history.collect_recent().items()},
        evaluation=monitor.evaluation,
        best=best.checkpoint,
        confirmed_by=monitor.confirmed_by,
        stopped=monitor.stopped,
        status=status,
        failure=failure,
    )


def open_trackers(
    settings: Settings, folder: RunFolder, env_steps: int, roles: Mapping[str, Role], stack: ExitStack
) -> TrackerList:
    """Return the trackers of a run, which continues from `env_steps`; `stack` finishes them at the latest.

    Raises UserError if the tracker of a new run cannot be opened. If that of a resumed run cannot, one line is logged.
    """
    run, name = _make_tracked_run(settings, folder, env_steps, roles), settings.base.tracker
    adapter = find_class("env_type", settings.base.env_type)
    opened = TrackerList({"tensorboard": TensorBoard(run, adapter.rename_metrics)})
    stack.callback(opened.finish, None)
    try:
        if name != "none":
            opened.trackers[name] = find_class("tracker", name)(run)
    except ImportError as error:
        needs = f"base_config.tracker {name} needs its packages ({error})"
        raise UserError(f"{needs}: {get_install_command(name)}") from error
    except UserError:
        raise
    except Exception as error:  # of a library, its files or its server
        if run.read_id(name) is None:
            raise UserError(f"the tracker {name} cannot be opened: {summarize_error(error)}") from error
        report_failure(name, error)
    return opened


def _make_tracked_run(settings: Settings, folder: RunFolder, env_steps: int, roles: Mapping[str, Role]) -> TrackedRun:
    runs, tracker = run_folder.RUNS.absolute(), settings.tracker
    is_below = folder.path.is_relative_to(runs)
    specs = [role.action_spec for role in roles.values()]
    teams = [team for name, role in roles.items() for team in role.count_lanes_by_team(name)]  # or roles without teams
    return TrackedRun(
        folder=folder.path,
        runs=runs,
        name=folder.path.relative_to(runs).as_posix() if is_below else folder.path.name,
        project=tracker.project,
        group=tracker.group,
        settings={
            path: value
            for path, value in iterate_settings(settings.tree)
            if path.partition(".")[0] not in NO_SETTINGS_OF_A_RUN and find_failure(settings, path, specs) is None
        },
        config=redact_logins(format_yaml(settings.tree)),
        env_steps=env_steps,
        suffixes=tuple(map(metric_suffix, teams)),
        online=tracker.mode == "online",
        address=tracker.address,
    )
