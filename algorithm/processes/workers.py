"""The workers of a run, as its settings describe them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from algorithm.adapters.process_setup import PROCESSES
from algorithm.config.loader import Settings
from algorithm.config.registry import find_class
from algorithm.config.sections import BaseConfig
from algorithm.errors import UserError
from algorithm.parts.components_builder import Sharing
from algorithm.parts.run_folder import RunFolder
from algorithm.processes import worker
from algorithm.processes.shared_learner import SharedLearner
from algorithm.processes.shared_memory import SharedMemory
from algorithm.processes.worker_group import WorkerGroup


def check_workers(settings: Settings) -> None:
    """Raise UserError if the run has workers, and settings that workers do not support."""
    base = settings.base
    if not base.has_workers:
        return
    for each in (settings, *settings.roles.values()):
        if getattr(each.agent, "trust_region", None) == "full":
            raise UserError(f"{each.agent_section}.trust_region full is not for runtime WORKERS: use efficient or off")
    if find_spec("fcntl") is None:
        raise UserError("base_config.runtime WORKERS needs the file locks of Linux or macOS: use LOCAL")
    if base.device not in ("cpu", "auto"):
        raise UserError(
            f"base_config.device is {base.device}, but the workers of runtime WORKERS learn on the CPU: use cpu or auto"
        )
    if find_class("env_type", base.env_type).starts_programs:
        raise UserError(
            f"base_config.runtime WORKERS is not for env_type {base.env_type.upper()}, whose environments are separate "
            "processes already: use LOCAL, with more n_envs"
        )


@contextmanager
def open_workers(settings: Settings, folder: RunFolder) -> Iterator[WorkerGroup]:
    """Start the workers of a run, and end them with the block."""
    base = settings.base
    memory = SharedMemory(base.n_workers)
    group = WorkerGroup(
        spawn=partial(_spawn_worker, settings, folder, memory),
        memory=memory,
        count=base.n_workers,
        max_replacements=base.max_env_restarts,
    )
    try:
        group.open()
        yield group
    finally:
        group.close()


def _spawn_worker(
    settings: Settings, folder: RunFolder, memory: SharedMemory, index: int, replacements: int, connection: Connection
) -> BaseProcess:
    """Start a worker process, with its number, the number of its replacements and its connection."""
    make_env = None
    if folder.make_env is not None:
        import cloudpickle  # which Gymnasium needs

        make_env = cloudpickle.dumps(folder.make_env)
    task = worker.WorkerTask(
        settings=settings,
        folder=(folder.path, folder.nn_from),
        make_env=make_env,
        memory=memory,
        index=index,
        replacements=replacements,
    )
    name = f"worker-{index}"
    process = PROCESSES.Process(target=worker.run_worker, args=(task, connection), name=name)
    process.start()
    return process


def make_sharing(base: BaseConfig, memory: SharedMemory) -> Sharing:
    """Return what the main process shares with the workers."""
    make_learner = partial(SharedLearner, memory=memory, lock=base.worker_lock)
    return Sharing(make_learner=make_learner, is_main=True, has_environments=False, workers=base.n_workers)
