"""Settings and a run folder become parts; a run folder becomes agents that play."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from algorithm.adapters.adapter import Adapter
from algorithm.adapters.unity.curriculum import Scene
from algorithm.adapters.wrappers.on_demand import OnDemand
from algorithm.agents.agent import Agent
from algorithm.checkpointing.checkpoint import Checkpoint, CheckpointError
from algorithm.checkpointing.writer import Saving
from algorithm.cli.display import lines
from algorithm.config.effects import check_action_effects
from algorithm.config.loader import Settings
from algorithm.config.registry import find
from algorithm.config.role_agents import unknown_roles
from algorithm.errors import UserError
from algorithm.networks import Parameters
from algorithm.runs.faults import told
from algorithm.runs.lessons import Taught
from algorithm.runs.make_env import evaluation_copies, in_editor, make_adapter, missing_limit
from algorithm.runs.roles import check_same
from algorithm.runs.run_folder import RunFolder
from algorithm.runs.seeding import EVALUATION, PLAY, PROCESS, TRAINING, draw_seed, seed_process, seeds
from algorithm.runs.team_builder import TeamBuilder, make_agent
from algorithm.runs.torch_setup import acting_device, prepare_process
from algorithm.runtimes.signals import Terminated
from algorithm.specs import Role
from algorithm.training.actor import Actor
from algorithm.training.components import Parts
from algorithm.training.divergence import Divergence
from algorithm.training.evaluator import Evaluator, Played, mode_name
from algorithm.training.history import Counters, History
from algorithm.training.limits import Limits
from algorithm.training.metrics import Metrics
from algorithm.training.monitor import ConfirmedBy, Monitor
from algorithm.training.progress import Progress
from algorithm.training.reporter import Reporter
from algorithm.training.timer import STARTING, Clock


@dataclass(frozen=True)
class Result:
    """How a run ended."""

    reached: bool | None  # the goal, and it was confirmed; None without a goal
    counters: Counters
    returns: dict[str, float]  # of each role's last training episodes
    evaluation: dict[str, Played] | None  # the last one
    best: Checkpoint | None  # on evaluation episodes
    confirmed_by: ConfirmedBy | None = None  # whose episodes confirmed the goal

    @classmethod
    def of(cls, monitor: Monitor) -> Result:
        """Return the result that a monitor has recorded."""
        reached = None if monitor.limits.goal is None else monitor.confirmed
        best, confirmed_by = monitor.best.checkpoint, monitor.confirmed_by
        return cls(reached, monitor.counters, monitor.mean_returns, monitor.played, best, confirmed_by)


def train(
    settings: Settings,
    folder: RunFolder,
    say: Callable[[str], None],
    show: Callable[[Progress], None] | None = None,
    ended: Callable[[Result], None] = lambda result: None,
    saved: Callable[[Checkpoint], None] = lambda checkpoint: None,
) -> Result:
    """Train in `folder`, from its newest checkpoint where it has one.

    `say` gets lines for the user. `show` is told several times a second how the run stands; without it, there is a line
    for each row of metrics. Whatever ends the run, `ended` hears how far it came; `saved` hears of
    every checkpoint.
    """
    clock = Clock()
    prepare_process()
    base = settings.base
    seed_process(draw_seed(seeds(base.seed, PROCESS)))
    checkpoints = folder.checkpoints(base.keep_checkpoints)
    checkpoint = checkpoints.latest(say)
    checkpoints.begin(checkpoint, say, not folder.has_teams)
    counters = checkpoint.counters if checkpoint else Counters()
    scene = Scene(settings.reset, lambda: counters.env_steps / base.max_step)
    teams = {name: role.teams for name, role in folder.roles().items()}
    adapter = make_adapter(settings, folder, base.n_envs, scene=scene, ended=scene.ended, teams=teams)
    # Evaluation takes its own copies; as many as it plays episodes, since lanes of one process cost little.
    evaluation = OnDemand(
        lambda: make_adapter(settings, folder, evaluation_copies(settings), scene=scene, beside=base.n_envs)
    )
    try:
        if note := missing_limit(settings):
            say(note)
        parts = _parts(adapter, TeamBuilder(settings, folder, checkpoint, say), clock)
        evaluator = Evaluator(evaluation, lambda role: parts.team(role, evaluation).agent, base.evaluate_greedy)
        history, ends = History(parts, counters), limits(settings)
        if in_editor(settings) and ends.evaluated:
            say("nothing is evaluated, since there is one Unity editor; training episodes alone confirm a goal")
        saving = Saving(checkpoints, parts, say, saved)
        monitor = Monitor(
            history,
            ends,
            Reporter(history, ends, Metrics(folder.path, counters.env_steps, say), say, show or lines(say)),
            # Seeds of the moment alone, so that a resumed run is evaluated as an unbroken one is.
            None
            if in_editor(settings)
            else lambda episodes: evaluator.play(episodes, draw_seed(seeds(base.seed, EVALUATION, counters.env_steps))),
            saving,
            checkpoints.best,
        )
        with told(folder.path / "faults.log", say, counters):
            actor = Actor(parts, draw_seed(seeds(base.seed, TRAINING, counters.env_steps)))
            _check_roles(settings, folder, adapter, say)
            check_action_effects(settings, adapter.roles)
            saving.follow(actor, Taught(monitor, scene))
            if checkpoint:
                checkpoint.resume(actor, Taught(monitor, scene))
            folder.record(settings.tree, counters.env_steps)
            divergence = Divergence(parts, base.max_nonfinite_updates)
            clock.book(STARTING)
            try:
                _run(find("runtime", base.runtime)(), parts, actor, monitor, divergence, saving)
            finally:
                result = Result.of(monitor)
                ended(result)
    finally:
        adapter.close()
        evaluation.close()
    return result


def _parts(adapter: Adapter, builder: TeamBuilder, clock: Clock) -> Parts:
    """The teams of all roles that are known already: what cannot be built is known before anything begins."""
    parts, checkpoint = Parts(adapter, builder, clock=clock, enlarge=builder.enlarge), builder.checkpoint
    for role in dict.fromkeys([*adapter.roles, *(checkpoint.roles if checkpoint else [])]):
        parts.teams[role] = parts.build(role, _role(builder.folder, adapter, role))
    return parts


def _role(folder: RunFolder, adapter: Adapter, name: str) -> Role:
    """A role as the simulator offers it, or as it was if it has yet to appear. Raises UserError where they differ."""
    before, now = folder.roles().get(name), adapter.roles.get(name)
    if before and now:
        check_same(folder.path, before, now)
    return now or before


def _check_roles(settings: Settings, folder: RunFolder, adapter: Adapter, say: Callable[[str], None]) -> None:
    """What is known only once the simulator has started. Raises UserError where a role is not what it was."""
    for role in adapter.roles:
        _role(folder, adapter, role)
    for line in unknown_roles(settings.tree["ma_config"], adapter.roles):
        say(line)


def _run(runtime, parts: Parts, actor: Actor, monitor: Monitor, divergence: Divergence, saving: Saving) -> None:
    """Raises CheckpointError where what a run that ended, or was interrupted, has learned could not be saved."""
    try:
        runtime.run(parts, actor, monitor, divergence)
    except (KeyboardInterrupt, Terminated):
        saving.require()
        raise
    saving.require()


def limits(settings: Settings) -> Limits:
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
    copies: int | None = None,
    say: Callable[[str], None] = print,
    new_episodes: bool = False,
) -> dict[str, Played]:
    """Play whole episodes with the best weights of a run, or with the checkpoint that `ckpt` names.

    The default of `copies` is the number of environments of an evaluation. The seeds are those of the evaluation of
    these weights, which is therefore reproduced if mode, `episodes` and `copies` are the same; with `new_episodes`
    they differ. `say` receives a line with checkpoint and mode, and one for each checkpoint that is skipped.
    """
    prepare_process()
    checkpoint = folder.checkpoint(ckpt, say)
    env_steps = checkpoint.counters.env_steps
    say(f"playing {folder} after {env_steps:,} env steps, {mode_name(greedy)}")
    root = settings.base.seed
    seed = draw_seed(seeds(root, PLAY) if new_episodes else seeds(root, EVALUATION, env_steps))
    agents: dict[str, Agent] = {}

    def agent_of(role: str) -> Agent:
        if role not in agents:
            if role not in checkpoint.roles:
                raise UserError(
                    f"the environment has a role {role!r} that had not appeared in {folder} after {env_steps:,} env "
                    "steps: train longer (--resume)"
                )
            agents[role] = load_agent(settings, folder, checkpoint, role, adapter.roles[role])
        return agents[role]

    adapter = make_adapter(settings, folder, copies or evaluation_copies(settings), render)
    try:
        return Evaluator(adapter, agent_of, greedy).play(episodes, seed)
    finally:
        adapter.close()


def load_agent(settings: Settings, folder: RunFolder, checkpoint: Checkpoint, name: str, role: Role) -> Agent:
    """The agent of one role with a checkpoint's weights, to play: nothing of it learns, or is noisy."""
    settings = settings.of(name)
    agent = make_agent(settings, folder, role, np.random.default_rng(seeds(settings.base.seed, PLAY)))
    parameters = Parameters(
        {group: member.module for group, member in agent.groups.items()},
        agent.lagging,
        agent.running(),
        acting_device(settings, agent, role),
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
    for name, role in folder.roles().items():
        load_agent(settings, folder, folder.latest(), name, role)
