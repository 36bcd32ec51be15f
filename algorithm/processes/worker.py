"""A worker process of a run: it opens its own environments, and builds its agents like a run in one process."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NoReturn

from algorithm.adapters.curriculum import EnvironmentParameters
from algorithm.adapters.process_setup import prepare_worker
from algorithm.checkpointing.checkpoint import Checkpoint
from algorithm.config.loader import Settings
from algorithm.errors import UserError, format_traceback, summarize_error
from algorithm.parts.agent_config import AgentConfigs
from algorithm.parts.components_builder import ComponentsBuilder, Sharing
from algorithm.parts.make_env import Environments
from algorithm.parts.run_folder import RunFolder
from algorithm.parts.seeding import RunSeeds, seed_process
from algorithm.parts.torch_setup import configure_torch
from algorithm.parts.user_code import find_user_error
from algorithm.processes.messages import LogRecord, Ready, Report, Start
from algorithm.processes.shared_learner import SharedLearner
from algorithm.processes.shared_memory import SharedMemory
from algorithm.processes.worker_loop import Stopped, WorkerLoop
from algorithm.specs import Role
from algorithm.training.actor import Actor
from algorithm.training.components import AgentComponents, TrainingComponents


@dataclass(frozen=True, kw_only=True)
class WorkerTask:
    """What a worker process needs to start.

    Attributes:
        settings: settings of the run.
        folder: path of the run folder, and of the folder of the network's file.
        make_env: function that opens the environment instead of base_config.env_name, pickled; None without one.
        memory: the memory that the processes share.
        index: number of the worker.
        replacements: number of workers with this number that ended before it.
    """

    settings: Settings
    folder: tuple[Path, Path]
    make_env: bytes | None
    memory: SharedMemory
    index: int
    replacements: int


def run_worker(task: WorkerTask, connection: Connection) -> None:
    """Train in this process until the main process ends it, or has ended."""
    prepare_worker()
    # The main process ends its workers. Programs that an environment starts do not inherit this handler.
    signal.signal(signal.SIGTERM, lambda *_: None)
    end_with_parent()
    try:
        with forward_log(connection):
            train_worker(task, connection)
    except (Stopped, EOFError, BrokenPipeError, ConnectionResetError):
        pass
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def train_worker(task: WorkerTask, connection: Connection) -> None:
    """Open the environments, build the components, and make ticks. An exception is sent to the main process."""
    with ExitStack() as stack:
        loop = None
        try:
            loop = _build(task, connection, stack)
            loop.run()
        except (Stopped, EOFError, BrokenPipeError, ConnectionResetError):
            raise
        except BaseException as error:  # of the environment, or of a user's network
            connection.send(Report(error=make_sendable_error(error), trace=format_traceback(error)))
            while loop:  # the main process saves the experience, and ends the worker
                loop.wait()


def _build(task: WorkerTask, connection: Connection, stack: ExitStack) -> WorkerLoop:
    settings, seeds = task.settings, RunSeeds(task.settings.base.seed, (task.index, task.replacements))
    folder = RunFolder(*task.folder)
    folder.make_env = pickle.loads(task.make_env) if task.make_env else None
    configure_torch()
    seed_process(seeds.process)
    environments = Environments(settings, folder)
    adapter = stack.enter_context(closing(environments.open_training(EnvironmentParameters(settings.reset))))
    connection.send(Ready(dict(adapter.roles)))
    start = connection.recv()
    if not isinstance(start, Start):
        raise Stopped
    checkpoint = Checkpoint(start.checkpoint, task.index) if start.checkpoint else None
    if checkpoint and not checkpoint.has_experience:
        checkpoint = None
    make_learner = partial(SharedLearner, memory=task.memory, lock=settings.base.worker_lock)
    workers = settings.base.n_workers
    sharing = Sharing(make_learner=make_learner, is_main=False, worker=task.index, workers=workers)
    builder = ComponentsBuilder(AgentConfigs(settings), folder, checkpoint, lambda line: None, sharing, seeds)
    training = TrainingComponents(adapter, refuse_role, grow_components=refuse_lanes)
    for name, role in adapter.roles.items():
        training.by_role[name] = builder(name, role)
    actor = Actor(training, seeds.get_training_seed(start.counters.env_steps))
    if checkpoint:
        checkpoint.restore_process(actor)
    return WorkerLoop(connection, training, actor, task.memory, task.index, start.counters)


def refuse_role(name: str, role: Role) -> NoReturn:
    """Raise UserError for a role that appears during a run, for which the main process has no parameters."""
    raise UserError(f"role {name!r} appeared after the start, which only runtime LOCAL supports")


def refuse_lanes(name: str, components: AgentComponents, role: Role) -> NoReturn:
    """Raise UserError for lanes that are added during a run, which the main process does not know."""
    raise UserError(
        f"role {name!r} has {role.lanes} agents after {components.role.lanes} at the start, which only runtime "
        "LOCAL supports"
    )


def make_sendable_error(error: BaseException) -> BaseException:
    """Return the error that the main process raises: a SystemExit of a user's code must not end it."""
    error = find_user_error(error)
    if isinstance(error, SystemExit):
        return RuntimeError(f"sys.exit({error.code!r}) was called")
    with suppress(Exception):
        pickle.loads(pickle.dumps(error))
        return error
    return RuntimeError(summarize_error(error))


def end_with_parent() -> None:
    """End this process when the main process ends, in any way; on Linux the system does that (`PROCESSES`)."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def forward_log(connection: Connection) -> Iterator[None]:
    """Send what the package logs within the block to the main process."""
    logger = logging.getLogger("algorithm")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    handler = _ConnectionHandler(connection)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _ConnectionHandler(logging.Handler):
    """A handler that sends each message over a connection."""

    def __init__(self, connection: Connection):
        super().__init__()
        self.connection = connection

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            self.connection.send(LogRecord(record.levelno, record.getMessage()))
