"""Populations: their folders, the members in them, and their training."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from algorithm.atomic_io import replace_text
from algorithm.checkpointing.manifest import CheckpointError
from algorithm.checkpointing.transfer import copy_checkpoint
from algorithm.config.effects import check_effects
from algorithm.config.loader import Settings, read_yaml, resolve
from algorithm.config.population import read_spaces
from algorithm.config.trees import format_yaml
from algorithm.errors import UserError
from algorithm.runs.env_folder import ORIGIN_FILE, RUNS, check_origin, get_run_group
from algorithm.runs.lock import FolderLock
from algorithm.runs.member import Members, RunTraining, make_member_tree
from algorithm.runs.member_processes import MemberProcesses
from algorithm.runs.run_folder import RunFolder, find_environment_folder
from algorithm.runs.run_records import list_changes
from algorithm.runs.session import RunRequest
from algorithm.runtimes.evolution import sample_settings
from algorithm.runtimes.exchange import CopyBest, ExchangePlan
from algorithm.runtimes.lineage import STATE_FILE, LineageRow, MemberPlan, PopulationRecord, PopulationState
from algorithm.runtimes.population import Population

SETTINGS_FILE = "population.yaml"  # the settings of a population, in its folder
START = 0  # number of the interval before the first, for seeds
Log = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class PopulationFolder:
    """The folder runs/<environment>/<name>/ of a population; the run folder of member k is <name>-<k>, next to it."""

    path: Path
    size: int

    @property
    def members(self) -> list[RunFolder]:
        """Return the run folders of the members."""
        return [RunFolder(self.path.with_name(f"{self.path.name}-{k + 1}")) for k in range(self.size)]

    @property
    def record(self) -> PopulationRecord:
        """Return the files with plan and lineage."""
        return PopulationRecord(self.path)

    @property
    def lock(self) -> FolderLock:
        """Return the lock that a process holds while it trains the population."""
        return FolderLock(self.path, str(self.path))


@contextmanager
def create_population(request: RunRequest, name: str, settings: Settings) -> Iterator[PopulationFolder]:
    """Make the folders of a new population and of its members, and hold the lock of the population within the block.

    Raises:
        UserError: a name is taken, or a space does not fit the settings.
    """
    size, spaces = settings.population.size, read_spaces(settings.population.random_params, settings.tree)
    assert size is not None
    folder = PopulationFolder(path=RUNS / get_run_group(request.env) / name, size=size)
    for member in folder.members:
        RunFolder.check_name_free(request.env, member.path.name)
    rng = np.random.default_rng([settings.base.seed, START])
    plans = [MemberPlan(parent=k, settings=sample_settings(spaces, rng)) for k in range(1, size + 1)]
    folder.path.mkdir(parents=True)
    with folder.lock:
        (folder.path / ORIGIN_FILE).write_text(f"{request.env}\n", encoding="utf-8")
        source = find_environment_folder(request.env)
        for k, (member, plan) in enumerate(zip(folder.members, plans, strict=True), 1):
            tree = resolve([(SETTINGS_FILE, make_member_tree(settings.tree, k, plan.settings))]).tree
            RunFolder.create(request.env, source, member.path.name, tree)
        replace_text(folder.path / SETTINGS_FILE, format_yaml(settings.tree))
        folder.record.write_state(PopulationState(interval=1, members=plans))
        yield folder


def is_population(env: str, name: str) -> bool:
    """Return whether a population of this name exists."""
    return (RUNS / get_run_group(env) / name / STATE_FILE).is_file()


@contextmanager
def resume_population(request: RunRequest, log: Log) -> Iterator[tuple[PopulationFolder, Settings]]:
    """Yield the population to continue and its settings; its lock is held within the block.

    `log` receives a line for each setting that changes. Raises UserError for a change that is not possible.
    """
    path = RUNS / get_run_group(request.env) / str(request.name)
    check_origin(path, request.env)
    given = list(request.layers)
    recorded = read_yaml(path / SETTINGS_FILE)
    settings = replace(resolve([(str(path / SETTINGS_FILE), recorded), *given]), command_line_layers=given)
    check_effects(settings, given)
    assert settings.population.size is not None
    folder = PopulationFolder(path=path, size=settings.population.size)
    with folder.lock:
        for line in list_changes(recorded, settings):
            log(line)
        replace_text(path / SETTINGS_FILE, format_yaml(settings.tree))
        yield folder, settings


def train_population(
    environment: str,
    variant: str | None,
    folder: PopulationFolder,
    settings: Settings,
    train: RunTraining,
    log: Log,
) -> Sequence[LineageRow]:
    """Train a population until it ends, from what is in its folder, which the caller has locked.

    Args:
        environment: name or path of the environment folder.
        variant: variant of its config.yaml; None if it is not known.
        folder: the folder.
        settings: the settings of the population.
        train: trains in a run folder; `algorithm.api.run_training`.
        log: receives lines for the user.

    Returns:
        The rows of the lineage.
    """
    config = settings.population
    folders = folder.members
    members = Members(
        environment=environment,
        variant=variant,
        folders=tuple(member.path for member in folders),
        tree=settings.tree,
        train=train,
    )
    runner = MemberProcesses(members, config.processes or count_cores())
    exchange = CopyBest(
        read_spaces(config.random_params, settings.tree),
        config.exchange_fraction,
        config.perturb_factors,
        config.resample_probability,
    )
    population = Population(
        record=folder.record,
        runner=runner,
        exchange=exchange,
        transfer=lambda plan, interval: _copy_checkpoints(folders, plan, settings.base.keep_checkpoints, log),
        interval=config.interval,
        max_restarts=config.max_restarts,
        seed=settings.base.seed,
        log=log,
    )
    try:
        population.run()
    finally:
        runner.close()
    return population.lineage


def _copy_checkpoints(folders: Sequence[RunFolder], plan: ExchangePlan, keep: int, log: Log) -> None:
    """Copy the newest checkpoint of its parent to each member that has another parent."""
    for number, member in enumerate(plan.members, 1):
        if member.parent == number:
            continue
        parent, own = folders[member.parent - 1], folders[number - 1]
        checkpoint = parent.checkpoints(keep).latest(log)
        if checkpoint is None:
            raise CheckpointError(f"{parent} has no checkpoint to copy")
        with own.lock:
            copy_checkpoint(checkpoint, own.checkpoints(keep))


def count_cores() -> int:
    """Return the number of processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
