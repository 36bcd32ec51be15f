"""Populations: new ones, existing ones, and their training."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial

import numpy as np

from algorithm.atomic_io import replace_text
from algorithm.config.loader import Settings, resolve
from algorithm.config.unused_settings import check_effects
from algorithm.config.yaml_layers import format_yaml, read_yaml
from algorithm.errors import UserError
from algorithm.parts.env_folder import RUNS, check_format, check_origin, get_run_group, write_origin
from algorithm.parts.lock import check_links
from algorithm.parts.make_env import check_several_processes
from algorithm.parts.run_folder import RunFolder, find_environment_folder, list_changes
from algorithm.population.exchange import CopyBest, DrawWeights, Exchange
from algorithm.population.folder import LineageRow, MemberPlan, PopulationFolder, PopulationState
from algorithm.population.member import Members, RunTraining, make_member_tree
from algorithm.population.member_checkpoints import transfer_checkpoints
from algorithm.population.member_fleet import MemberFleet
from algorithm.population.rounds import Population
from algorithm.population.setting_spaces import make_spaces
from algorithm.runs.run_requests import RunRequest

SETTINGS_FILE = "population.yaml"  # the settings of a population, in its folder
START = 0  # number of the interval before the first, for seeds
Log = Callable[[str], None]


@contextmanager
def create_population(request: RunRequest, name: str, settings: Settings) -> Iterator[PopulationFolder]:
    """Make the folders of a new population and of its members, and hold the lock of the population within the block.

    A block that ends before a member has learned removes all of them.

    Raises:
        UserError: a name is taken, or a setting is not for a population.
    """
    _check_request(request, settings)
    spaces = make_spaces(settings)
    folder = _make_folder(request, name, settings)
    for member in folder.members:
        RunFolder.check_name_free(request.env, member.path.name)
    rng = np.random.default_rng([settings.base.seed, START])
    plans = [MemberPlan(parent=k, settings=spaces.sample(rng)) for k in range(1, folder.size + 1)]
    folder.path.mkdir(parents=True)
    try:
        with folder.lock:
            write_origin(folder.path, request.env)
            source = find_environment_folder(request.env) if request.has_folder else None
            for k, (member, plan) in enumerate(zip(folder.members, plans, strict=True), 1):
                tree = resolve([(SETTINGS_FILE, make_member_tree(settings.tree, k, plan.settings))]).tree
                RunFolder.create(request.env, source, member.path.name, tree)
            replace_text(folder.path / SETTINGS_FILE, format_yaml(settings.tree))
            folder.write_state(PopulationState(interval=1, members=plans))
            yield folder
    finally:
        if not folder.has_learned():
            shutil.rmtree(folder.path)
            for member in folder.members:
                if member.path.exists():
                    member.remove()


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
    folder = _make_folder(request, name, settings)
    with folder.lock:
        check_links(path)
        for line in list_changes(recorded, settings):
            log(line)
        replace_text(path / SETTINGS_FILE, format_yaml(settings.tree))
        yield folder, settings


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


def _make_folder(request: RunRequest, name: str, settings: Settings) -> PopulationFolder:
    assert settings.population.size is not None
    return PopulationFolder(RUNS / get_run_group(request.env) / name, settings.population.size)


def train_population(
    environment: str,
    variant: str | None,
    folder: PopulationFolder,
    settings: Settings,
    train: RunTraining,
    log: Log,
    make_fleet: Callable[[Members, Settings, Log], MemberFleet] = MemberFleet,
) -> Sequence[LineageRow]:
    """Train a population until it ends, from what is in its folder, which the caller has locked.

    Args:
        environment: name or path of the environment folder.
        variant: variant of its config.yaml; None if it is not known.
        folder: the folder.
        settings: the settings of the population.
        train: trains in a run folder; `algorithm.api.run_training`.
        log: receives lines for the user.
        make_fleet: returns the processes that train the members.

    Returns:
        The rows of the lineage.

    Raises:
        MemberFailed: all members have failed in an interval.
        UserError: a setting does not fit the members.
    """
    folders = tuple(member.path for member in folder.members)
    members = Members(environment=environment, variant=variant, folders=folders, tree=settings.tree, train=train)
    spaces, config = make_spaces(settings), settings.population
    exchange: Exchange = DrawWeights(spaces, config) if config.evolver_enabled else CopyBest(spaces, config)
    transfer = partial(transfer_checkpoints, folder, settings.base, log)
    with closing(make_fleet(members, settings, log)) as fleet:
        population = Population(folder, settings, fleet.train, exchange, transfer, log)
        population.run()
    return population.lineage
