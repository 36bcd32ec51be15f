"""The workers of a run, as its settings describe them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from algorithm.config.loader import Settings
from algorithm.config.schema import BaseConfig
from algorithm.runs.components_builder import Sharing
from algorithm.runs.run_folder import RunFolder
from algorithm.runs.worker import WorkerSpawner
from algorithm.runtimes.shared_memory import SharedMemory
from algorithm.runtimes.worker_group import WorkerGroup


def has_workers(base: BaseConfig) -> bool:
    """Return whether a run has workers."""
    return base.runtime.casefold() == "workers"


@contextmanager
def open_workers(settings: Settings, folder: RunFolder) -> Iterator[WorkerGroup]:
    """Start the workers of a run, and end them with the block."""
    base = settings.base
    memory = SharedMemory(base.n_workers)
    group = WorkerGroup(
        spawn=WorkerSpawner(settings, folder, memory),
        memory=memory,
        count=base.n_workers,
        max_replacements=base.max_env_restarts,
    )
    try:
        group.open()
        yield group
    finally:
        group.close()


def make_sharing(base: BaseConfig, memory: SharedMemory) -> Sharing:
    """Return what the main process shares with the workers."""
    return Sharing(memory=memory, lock=base.worker_lock, workers=base.n_workers, worker=None)
