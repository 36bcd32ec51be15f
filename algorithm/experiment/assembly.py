"""Settings and a run folder become parts; a run folder becomes agents that play."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np
import torch

from algorithm.adapters.adapter import Adapter, UnsupportedEnvironment
from algorithm.agents.agent import Agent
from algorithm.experiment.errors import UserError
from algorithm.experiment.memory import Budget
from algorithm.experiment.registry import find
from algorithm.experiment.run_folder import RunFolder
from algorithm.experiment.settings import Settings
from algorithm.loop.actor import Actor
from algorithm.loop.checkpoint import Checkpoint, CheckpointError
from algorithm.loop.evaluator import Evaluator, Played
from algorithm.loop.feed import Feed
from algorithm.loop.learner import Learner
from algorithm.loop.metrics import Metrics
from algorithm.loop.monitor import WINDOW, Counters, Limits, Monitor
from algorithm.loop.parts import Parts, Team
from algorithm.loop.saving import Saving
from algorithm.networks import Blueprint, Mlp, Parameters
from algorithm.replay import Replay, size_of
from algorithm.specs import Role

TRAINING, EVALUATION, PLAY, TEAM = range(4)  # purposes with seeds of their own


@dataclass(frozen=True)
class Result:
    """How a run ended."""

    reached: bool | None  # the goal, confirmed by held-out episodes; None without a goal
    counters: Counters
    returns: dict[str, float]  # of each role's last training episodes
    evaluation: dict[str, Played] | None
    seconds: float


def train(settings: Settings, folder: RunFolder, say: Callable[[str], None]) -> Result:
    """Train in `folder`, from its newest checkpoint where it has one."""
    begin = time.perf_counter()
    prepare_process()
    base = settings.base
    checkpoints = folder.checkpoints(base.keep_checkpoints)
    checkpoint = checkpoints.latest(say)
    checkpoints.begin(checkpoint)
    counters = checkpoint.counters if checkpoint else Counters()
    adapter = make_adapter(settings, folder, base.n_envs)
    # Evaluation takes its own copies; as many as it plays episodes, since lanes of one process cost little.
    evaluation = make_adapter(settings, folder, evaluation_copies(settings))
    try:
        parts = Parts(adapter, TeamBuilder(settings, folder, checkpoint, say))
        for role in checkpoint.roles if checkpoint else []:
            parts.teams[role] = parts.build(role, folder.roles()[role])
        evaluator = Evaluator(evaluation, lambda role: parts.team(role).agent, base.evaluate_greedy)
        saving = Saving(checkpoints, parts, say)
        monitor = Monitor(
            parts,
            limits(settings),
            counters,
            Metrics(folder.path, counters.env_steps),
            # Each evaluation has episodes of its own, whether the run was resumed before it or not.
            lambda episodes: evaluator.play(episodes, draw_seed(seeds(base.seed, EVALUATION, counters.env_steps))),
            saving,
            say,
        )
        actor = Actor(parts, draw_seed(seeds(base.seed, TRAINING, counters.env_steps)))
        saving.follow(actor, monitor)
        if checkpoint:
            checkpoint.resume(actor, monitor)
        folder.record(settings.tree, counters.env_steps)
        _run(find("runtime", base.runtime)(), parts, actor, monitor, saving)
    finally:
        adapter.close()
        evaluation.close()
    return Result(
        None if monitor.limits.goal is None else monitor.confirmed,
        counters,
        {role: monitor.mean_return(role) for role in parts.teams},
        monitor.played,
        time.perf_counter() - begin,
    )


def _run(runtime, parts: Parts, actor: Actor, monitor: Monitor, saving: Saving) -> None:
    """Raises CheckpointError where what a run that ended, or was interrupted, has learned could not be saved."""
    try:
        runtime.run(parts, actor, monitor)
    except KeyboardInterrupt:
        saving.require()
        raise
    saving.require()


def limits(settings: Settings) -> Limits:
    """When a run does what."""
    base = settings.base
    goal = settings.goal.return_ if settings.goal else None
    return Limits(base.max_step, base.max_iter, base.log_every, base.save_every, base.evaluate_every, goal)


def play(settings: Settings, folder: RunFolder, episodes: int, greedy: bool, render: bool = False) -> dict[str, Played]:
    """Play whole episodes with a run's newest checkpoint that can be read."""
    prepare_process()
    checkpoint = folder.latest()
    agents: dict[str, Agent] = {}

    def agent_of(role: str) -> Agent:
        if role not in agents:
            agents[role] = load_agent(settings, folder, checkpoint, role, adapter.roles[role])
        return agents[role]

    adapter = make_adapter(settings, folder, 1 if render else evaluation_copies(settings), render)
    try:
        return Evaluator(adapter, agent_of, greedy).play(episodes, draw_seed(seeds(settings.base.seed, PLAY)))
    finally:
        adapter.close()


def load_agent(settings: Settings, folder: RunFolder, checkpoint: Checkpoint, name: str, role: Role) -> Agent:
    """The agent of one role with a checkpoint's weights."""
    agent = make_agent(settings, folder, role, np.random.default_rng(seeds(settings.base.seed, PLAY)))
    parameters = Parameters(
        {group: member.module for group, member in agent.groups.items()}, agent.lagging, {}, device(settings)
    )
    try:
        parameters.load(checkpoint.weights(name))
    except ValueError as error:
        raise CheckpointError(f"{checkpoint.folder}: {error}") from error
    return agent


class TeamBuilder:
    """Builds the team of a role when it first appears, as it was in `checkpoint` if it was there."""

    def __init__(
        self, settings: Settings, folder: RunFolder, checkpoint: Checkpoint | None, say: Callable[[str], None]
    ):
        self.settings, self.folder, self.checkpoint = settings, folder, checkpoint
        self.budget = Budget(say)

    def __call__(self, name: str, role: Role) -> Team:
        settings = self.settings
        # The name is part of the seed, so that roles differ and their order of appearance does not matter.
        root = seeds(settings.base.seed, TEAM, *name.encode())
        agent_seed, feed_seed, replay_seed, network_seed = root.spawn(4)
        torch.manual_seed(draw_seed(network_seed))
        agent = make_agent(settings, self.folder, role, np.random.default_rng(agent_seed))
        schedule, capacity = agent.schedule, settings.replay.capacity
        self.budget.plan(name, size_of(capacity, role, schedule.collect_steps, agent.state))
        try:
            replay = Replay(
                capacity,
                role.lanes,
                schedule.collect_steps,
                schedule.trace_length,
                np.random.default_rng(replay_seed),
                schedule.burn_in,
                recurrent=agent.state > 0,
            )
        except ValueError as error:
            raise UserError(f"replay_config.{error}") from error
        auxiliaries = {key: find("auxiliaries", key)(**(value or {})) for key, value in settings.auxiliaries.items()}
        explorers = [find("explorer", key)(**(value or {})) for key, value in settings.explorer.items()]
        learner = Learner(agent, role, auxiliaries, settings.base.max_step, device(settings))
        feed = Feed(replay, schedule, np.random.default_rng(feed_seed))
        team = Team(role, agent, feed, learner, *explorers)
        self.folder.add_role(name, role)
        if self.checkpoint and name in self.checkpoint.roles:
            self.checkpoint.restore(name, team)
        return team


def make_adapter(settings: Settings, folder: RunFolder, copies: int, render: bool = False) -> Adapter:
    """The simulator of the settings."""
    base = settings.base
    try:
        return find("env_type", base.env_type)(
            folder.environment(settings), copies, base.env_args, base.max_step_each_iter, render
        )
    except UnsupportedEnvironment as error:
        raise UserError(f"base_config: {error}") from error


def make_agent(settings: Settings, folder: RunFolder, role: Role, rng: np.random.Generator) -> Agent:
    """The agent of the settings, with the run's network."""
    blueprint = folder.blueprint(settings) or default_blueprint(role)
    try:
        return find("algorithm", settings.base.algorithm)(settings.agent, blueprint, role, rng)
    except ValueError as error:
        raise UserError(str(error)) from error


def default_blueprint(role: Role) -> Blueprint:
    """A sensible network for observations that are vectors."""
    size = sum(prod(spec.shape) for spec in role.obs_specs.values())
    return Blueprint(body=Mlp(64, 64) if size <= 64 else Mlp(256, 256))


def evaluation_copies(settings: Settings) -> int:
    """As many as there are episodes to play; no more processes than training has, though."""
    asynchronous = settings.base.env_args.get("vectorization_mode") == "async"
    return settings.base.n_envs if asynchronous else WINDOW


def seeds(seed: int, *purpose: int) -> np.random.SeedSequence:
    """Independent seeds for each purpose of a run."""
    return np.random.SeedSequence([seed, *purpose])


def draw_seed(sequence: np.random.SeedSequence) -> int:
    """The next seed of a sequence, as simulators take them; every call gives another."""
    return int(sequence.spawn(1)[0].generate_state(1)[0] >> 1)


def device(settings: Settings) -> torch.device:
    """The device of the settings. Raises UserError where it is not there."""
    name = settings.base.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"base_config.device is {name}, but torch finds no such device; use cpu or auto")
    return torch.device(name)


def prepare_process() -> None:
    """One thread, and memory that is kept.

    Small networks only lose with more threads, and processes beside this one keep their core. Freeing one large block
    that was never touched lets glibc keep up to twice as much: otherwise it hands the pages of every activation back to
    the system and faults them in again (with 6,400 rows, three times the time of a forward pass). Elsewhere it does
    nothing.
    """
    torch.set_num_threads(1)
    torch.empty(31 * 2**20, dtype=torch.uint8)
