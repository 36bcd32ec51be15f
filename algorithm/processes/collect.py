"""A rollout actor of a run: it opens its own environments and builds its agents from the settings of the run."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from algorithm.adapters.curriculum import EnvironmentParameters
from algorithm.adapters.process_setup import prepare_worker
from algorithm.config.loader import Settings
from algorithm.errors import format_traceback
from algorithm.parts.agent_config import AgentConfig, AgentConfigs
from algorithm.parts.components_builder import make_agent, make_auxiliaries, make_explorer
from algorithm.parts.lock import make_temporary_folder
from algorithm.parts.make_env import Environments
from algorithm.parts.run_folder import RunFolder
from algorithm.parts.seeding import RunSeeds, seed_process
from algorithm.parts.torch_setup import choose_placement, configure_torch
from algorithm.processes.collection import (
    Collection,
    Failure,
    ReceivingLearner,
    Request,
    Weights,
    allow_read_only_arrays,
)
from algorithm.processes.messages import LogRecord
from algorithm.processes.rollout_actor import NoBatches, ReceivedProgress, RolloutActor
from algorithm.processes.worker import make_sendable_error, refuse_lanes, refuse_role
from algorithm.specs import Role
from algorithm.training.actor import Actor
from algorithm.training.components import AgentComponents, TrainingComponents

Reply = TypeVar("Reply")


@dataclass(frozen=True, kw_only=True)
class ActorTask:
    """The data from which an actor starts on any machine.

    Attributes:
        settings: settings of the run.
        files: contents of the files with code in the run folder, by name.
        make_env: function that opens the environment instead of base_config.env_name, pickled; None without one.
        env_steps: env steps of the run so far, from which the seed of the environments follows.
    """

    settings: Settings
    files: Mapping[str, bytes]
    make_env: bytes | None
    env_steps: int


class CollectorService:
    """A process of a rollout actor, which replies to calls: with an object, or with a Failure instead of an exception.

    Args:
        task: the data from which it starts.
        index: the number of the actor.
        replacements: the number of actors with this number that ended before it.
    """

    def __init__(self, task: ActorTask, index: int, replacements: int):
        self.task, self.index, self.replacements = task, index, replacements

    def open(self) -> Mapping[str, Role] | Failure:
        """Open the environments and build the agents. Return the roles of the environments."""
        return catch_failure(self._open)

    def collect(self, weights: Weights, request: Request) -> Collection | Failure:
        """Act with these weights until rollouts are complete. Return them."""
        return catch_failure(lambda: self._actor.collect(weights, request))

    def _open(self) -> Mapping[str, Role]:
        self._actor = make_rollout_actor(self.task, self.index, self.replacements, prepare_process())
        return self._actor.roles


def prepare_process() -> list[LogRecord]:
    """Configure the process of an actor. Return the list that receives what the package logs in it."""
    prepare_worker()
    allow_read_only_arrays()
    configure_torch()
    log: list[LogRecord] = []
    collect_log(log)
    return log


def make_rollout_actor(task: ActorTask, index: int, replacements: int, log: list[LogRecord]) -> RolloutActor:
    """Open the environments of an actor, seed the process, and build its agents.

    Args:
        task: the data from which it starts.
        index: the number of the actor.
        replacements: the number of actors with this number that ended before it.
        log: logged messages, which the actor returns with its collections.
    """
    settings, folder = task.settings, write_folder(task)
    seeds = RunSeeds(settings.base.seed, (index, replacements))
    seed_process(seeds.process)
    progress = ReceivedProgress()
    parameters = EnvironmentParameters(settings.reset, lambda: progress.fraction_done)
    adapter = Environments(settings, folder).open_training(parameters, index * settings.base.n_envs)
    training = TrainingComponents(adapter, refuse_role, grow_components=refuse_lanes)
    configs, actor = AgentConfigs(settings), Actor(training, seeds.get_training_seed(task.env_steps))
    for name, role in adapter.roles.items():  # those of Unity are known after the first reset
        training.by_role[name] = _build_components(task, index, seeds, configs.for_role(name), folder, name, role)
    return RolloutActor(training, actor, progress, log)


def _build_components(
    task: ActorTask, index: int, seeds: RunSeeds, config: AgentConfig, folder: RunFolder, name: str, role: Role
) -> AgentComponents:
    """Return the components of a role, which act and do not learn."""
    cluster, rng = task.settings.cluster, np.random.default_rng(seeds.make_component_seeds(name).spawn(1)[0])
    device = config.placement.device if cluster.gpus_per_actor else "cpu"
    learner = make_receiving_learner(config, folder, role, rng, device)
    agent, auxiliaries = learner.agent, learner.auxiliaries.by_name
    explorer = make_explorer(config, role, role.lanes, agent, auxiliaries, (index, cluster.actors))
    records_td_errors = agent.schedule.uses_replay and config.replay.initial_priorities is not None
    scheduler = NoBatches(role.lanes, records_td_errors)
    return AgentComponents(role=role, agent=agent, scheduler=scheduler, learner=learner, explorer=explorer)


def make_receiving_learner(
    config: AgentConfig, folder: RunFolder, role: Role, rng: np.random.Generator, device: str
) -> ReceivingLearner:
    """Return a learner with a new agent, whose weights are received.

    Args:
        config: the settings of the role.
        folder: the run folder, with the network.
        role: the role.
        rng: the generator of the agent's samples.
        device: the device of its networks.
    """
    agent = make_agent(config, folder, role, rng)
    placement = choose_placement(replace(config.placement, device=device, precision="float32"), agent, role)
    return ReceivingLearner(agent, role, make_auxiliaries(config), config.max_step, placement)


def write_folder(task: ActorTask) -> RunFolder:
    """Write the files of a task to a folder that is removed with this process. Return it as a run folder."""
    path = make_temporary_folder("samara-actor-")
    for name, content in task.files.items():
        (path / name).write_bytes(content)
    folder = RunFolder(path)
    folder.make_env = pickle.loads(task.make_env) if task.make_env else None
    return folder


def collect_log(records: list[LogRecord]) -> None:
    """Append what the package logs in this process to `records`."""
    logger = logging.getLogger("algorithm")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(_ListHandler(records))


class _ListHandler(logging.Handler):
    """A handler that appends each message to a list."""

    def __init__(self, records: list[LogRecord]):
        super().__init__()
        self.records = records

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(LogRecord(record.levelno, record.getMessage()))


def catch_failure(call: Callable[[], Reply]) -> Reply | Failure:
    """Return the result of `call`, or the exception that it raised."""
    try:
        return call()
    except BaseException as error:  # of the environment, or of a user's network
        return Failure(make_sendable_error(error), format_traceback(error))
