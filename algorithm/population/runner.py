"""Populations: their folders, the members in them, and their training."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from algorithm.atomic_io import replace_text
from algorithm.config.loader import Settings, resolve
from algorithm.config.unused_settings import check_effects
from algorithm.config.yaml_layers import format_yaml, read_yaml
from algorithm.errors import UserError
from algorithm.parts.env_folder import RUNS, check_format, check_origin, get_run_group, write_origin
from algorithm.parts.lock import FolderLock, check_links
from algorithm.parts.make_env import check_several_processes
from algorithm.parts.run_folder import RunFolder, find_environment_folder
from algorithm.parts.run_records import list_changes
from algorithm.population.exchange import CopyBest, DrawWeights, Exchange
from algorithm.population.lineage import LineageRow, MemberPlan, PopulationRecord, PopulationState
from algorithm.population.member import Members, RunTraining, make_member_tree
from algorithm.population.member_actors import open_member_actors
from algorithm.population.member_checkpoints import DISTRIBUTION_FILE, MemberCheckpoints
from algorithm.population.member_processes import MemberProcesses
from algorithm.population.rounds import MemberRunner, Population
from algorithm.population.setting_spaces import make_spaces
from algorithm.runs.run_requests import RunRequest

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

    def has_learned(self) -> bool:
        """Return whether metrics or a checkpoint of a member exist."""
        return any(member.has_learned() for member in self.members)

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

    A block that ends before a member has learned removes all of them.

    Raises:
        UserError: a name is taken, or a setting is not for a population.
    """
    _check_request(request, settings)
    size, spaces = settings.population.size, make_spaces(settings)
    assert size is not None
    folder = PopulationFolder(path=RUNS / get_run_group(request.env) / name, size=size)
    for member in folder.members:
        RunFolder.check_name_free(request.env, member.path.name)
    rng = np.random.default_rng([settings.base.seed, START])
    plans = [MemberPlan(parent=k, settings=spaces.sample(rng)) for k in range(1, size + 1)]
    folder.path.mkdir(parents=True)
    try:
        with folder.lock:
            write_origin(folder.path, request.env)
            source = find_environment_folder(request.env) if request.has_folder else None
            for k, (member, plan) in enumerate(zip(folder.members, plans, strict=True), 1):
                tree = resolve([(SETTINGS_FILE, make_member_tree(settings.tree, k, plan.settings))]).tree
                RunFolder.create(request.env, source, member.path.name, tree)
            replace_text(folder.path / SETTINGS_FILE, format_yaml(settings.tree))
            folder.record.write_state(PopulationState(interval=1, members=plans))
            yield folder
    finally:
        if not folder.has_learned():
            shutil.rmtree(folder.path)
            for member in folder.members:
                if member.path.exists():
                    member.replacement.restore()  # removes it, and parent folders that are empty


def _check_request(request: RunRequest, settings: Settings) -> None:
    """Raise UserError for a population that cannot be trained."""
    if request.repeat is not None:
        raise UserError("--repeat is for single runs: a population trains its members with consecutive seeds")
    if request.replace:
        raise UserError("--force is for single runs: give the population another name with -n")
    if request.use_env_nn:
        raise UserError("--use-env-nn is for single runs: the members of a population keep their copies of nn.py")
    if settings.base.max_iter is not None:
        raise UserError("base_config.max_iter is not for a population, whose intervals are env steps: use max_step")
    check_several_processes(settings.base, "a population", "train a single run")


@contextmanager
def resume_population(request: RunRequest, name: str, log: Log) -> Iterator[tuple[PopulationFolder, Settings]]:
    """Yield the population to continue and its settings; its lock is held within the block.

    `log` receives a line for each setting that changes. Raises UserError for a change that is not possible.
    """
    path = RUNS / get_run_group(request.env) / name
    check_origin(path, request.env)
    check_format(path)
    given = list(request.layers)
    recorded = read_yaml(path / SETTINGS_FILE)
    settings = replace(resolve([(str(path / SETTINGS_FILE), recorded), *given]), command_line_layers=given)
    check_effects(settings, given)
    _check_request(request, settings)
    assert settings.population.size is not None
    folder = PopulationFolder(path=path, size=settings.population.size)
    with folder.lock:
        check_links(path)
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
    make_runner: Callable[[Members, Settings, Log], MemberRunner] | None = None,
) -> Sequence[LineageRow]:
    """Train a population until it ends, from what is in its folder, which the caller has locked.

    Args:
        environment: name or path of the environment folder.
        variant: variant of its config.yaml; None if it is not known.
        folder: the folder.
        settings: the settings of the population.
        train: trains in a run folder; `algorithm.api.run_training`.
        log: receives lines for the user.
        make_runner: returns the runner of the members; None: the processes or the cluster of the settings.

    Returns:
        The rows of the lineage.

    Raises:
        MemberFailed: all members have failed in an interval.
        UserError: a setting does not fit the members.
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
    runner = (make_runner or _open_runner)(members, settings, log)
    checkpoints = MemberCheckpoints(
        folders=folders,
        distribution_path=folder.path / DISTRIBUTION_FILE,
        keep=settings.base.keep_checkpoints,
        seed=settings.base.seed,
        log=log,
    )
    population = Population(
        record=folder.record,
        runner=runner,
        exchange=_make_exchange(settings),
        transfer=checkpoints.transfer,
        interval=config.interval,
        is_over=partial(_is_over, settings),
        max_restarts=config.max_restarts,
        seed=settings.base.seed,
        log=log,
    )
    try:
        population.run()
    finally:
        runner.close()
    return population.lineage


def _open_runner(members: Members, settings: Settings, log: Log) -> MemberRunner:
    """Return the runner of the members: processes of this machine, or actors of a cluster."""
    config = settings.population
    if settings.base.is_on_cluster and settings.cluster.host == "ray":
        return open_member_actors(members, settings, log)
    return MemberProcesses(members, config.processes or count_cores(), config.timeout)


def _is_over(settings: Settings, row: LineageRow) -> bool:
    """Return whether a member has ended: it has reached the goal, or `max_step`."""
    max_step = settings.base.max_step
    goal = settings.goal.return_ if settings.goal else None
    # The goal may have changed since the row was written.
    reached = row.goal_reached and goal is not None and row.goal is not None and row.goal >= goal
    return reached or (max_step is not None and row.env_steps >= max_step)


def _make_exchange(settings: Settings) -> Exchange:
    config, spaces = settings.population, make_spaces(settings)
    if config.evolver_enabled:
        return DrawWeights(
            spaces=spaces,
            length=config.evolver_cem_length,
            best=config.evolver_cem_best,
            min_length=config.evolver_cem_min_length,
            minutes=config.evolver_cem_time,
            remove_worst=config.evolver_remove_worst,
        )
    return CopyBest(spaces, config.exchange_fraction, config.perturb_factors, config.resample_probability)


def count_cores() -> int:
    """Return the number of processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
