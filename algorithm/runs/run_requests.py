"""The runs that a command line or a program requests: names, settings and folders. The checks import no torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from algorithm.adapters.adapter import EnvConfig, UnsupportedEnvironment
from algorithm.adapters.gym_ids import find_env_type, find_spec
from algorithm.config.loader import Settings, check_effects, is_auto, merge_layers, resolve
from algorithm.config.registry import AGENTS, find_class, get_agent_section
from algorithm.config.sections import BaseConfig
from algorithm.config.yaml_layers import Layer, Tree, merge, read_own_variant, read_variant
from algorithm.errors import UserError
from algorithm.parts.env_folder import (
    CONFIG_FILE,
    POPULATION_FILE,
    RUNS,
    find_folder,
    find_folders_of_id,
    find_similar_folders,
    get_run_group,
    is_id,
    locate_environment,
)
from algorithm.parts.lock import check_links
from algorithm.parts.run_folder import RunFolder, find_environment_folder, format_run_name, list_changes
from algorithm.parts.user_code import has_file, load_environment, write_env_file, write_network_file
from algorithm.program import get_command

if TYPE_CHECKING:
    from algorithm.networks import Blueprint
    from algorithm.parts.suggested_settings import SuggestedSettings

Log = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A request for a run."""

    env: str  # name or path of the environment folder, or an id; for a function, the name under which runs are filed
    name: str | None = None  # of an existing run; None for the latest. The name of a new run is a setting.
    variant: str = "default"  # of the folder's config.yaml, for a new run
    layers: Sequence[Layer] = ()  # settings on top of the files, each with its source for messages
    repeat: int | None = None  # number of runs with consecutive seeds; None for a single run
    replace: bool = False  # whether a new run replaces an existing run of its name
    use_env_nn: bool = False  # whether an existing run takes nn.py from the environment folder instead of its own copy
    make_env: Callable[..., Any] | None = None  # of a program; None for the environment that `env` names
    # The network of a new run, or a function that returns it; None for the folder's nn.py, or the default network.
    blueprint: Blueprint | Callable[..., Blueprint] | None = None

    @property
    def has_folder(self) -> bool:
        """Whether the environment has a folder, with settings and code; otherwise it is an id or a function."""
        return self.make_env is None and not is_id(self.env)


@dataclass(frozen=True, kw_only=True)
class GivenSettings:
    """The settings that are given for new runs."""

    base: Layer  # of the files, below `RunRequest.layers`
    own: Tree  # those of `base` that were written for the variant
    tree: Tree  # `base` with `RunRequest.layers` on top
    settings: Settings  # with the defaults for all that are not given
    obstacle: str | None  # why none are suggested; None if they are


def read_settings(request: RunRequest) -> GivenSettings:
    """Return the settings that are given for new runs, of an environment that is not opened.

    Raises UserError for settings that cannot be used with it.
    """
    base, own = _read_base(request)
    layers = [base, *request.layers]
    tree, settings = merge({}, *(layer for _, layer in layers)), resolve(layers)
    obstacle = _find_obstacle(settings.base)
    if obstacle:
        settings = resolve_effective(base, own, request.layers)
    elif is_auto(tree):  # any section of an algorithm may have an effect
        for name in AGENTS:
            if get_agent_section(name) in tree:
                resolve([*layers, (base[0], {"base_config": {"algorithm": name}})])
    if not request.has_folder:
        _check_environment(request, settings.base)
    return GivenSettings(base=base, own=own, tree=tree, settings=settings, obstacle=obstacle)


def make_playable_config(request: RunRequest) -> EnvConfig:
    """Return the configuration of an environment that a person plays. Raises UserError if it is not of Gymnasium."""
    from algorithm.parts.make_env import make_env_config  # imports the adapters

    base = read_settings(request).settings.base
    if base.env_type.casefold() != "gym":
        raise UserError(f"{request.env} has env_type {base.env_type.upper()}; the keyboard plays environments of GYM")
    name = base.env_name or ""
    return replace(
        make_env_config(base),
        name=load_environment(find_environment_folder(request.env), name) if request.has_folder else name,
    )


def _find_obstacle(config: BaseConfig) -> str | None:
    """Return why no settings are suggested for new runs; None if they are."""
    if not config.suggest_settings:
        return "base_config.suggest_settings is false"
    if find_class("env_type", config.env_type).starts_programs:
        return f"the programs of env_type {config.env_type.upper()} take long to start"
    return None


def _check_environment(request: RunRequest, config: BaseConfig) -> None:
    """Raise UserError for settings of another environment than the requested one, and for an unknown id."""
    given = "env.py" if request.make_env else request.env
    if config.env_name != given:
        raise UserError(f"base_config.env_name is {config.env_name}, but {request.env} is to be trained")
    if request.make_env is None and config.env_type.upper() == "GYM":
        try:
            find_spec(request.env)
        except UnsupportedEnvironment as error:
            similar = find_similar_folders(request.env)
            advice = f"; did you mean {' or '.join(similar)}?" if similar else ""
            raise UserError(f"{str(error).rstrip('.')}{advice}") from error


def check_new_runs(request: RunRequest) -> None:
    """Raise UserError as `plan_runs` does, as far as that is possible without opening an environment."""
    _name_runs(request, read_settings(request).settings)


def find_population(env: str, name: str | None) -> str | None:
    """Return the name of a population; None if it is a single run.

    Args:
        env: name or path of the environment folder.
        name: name of a population or of a run; None: of the latest run, or of the population that it is a member of.
    """
    group = RUNS / get_run_group(env)
    if name is None:
        name = RunFolder.find(env, None).path.name.rpartition("-")[0]
    return name if (group / name / POPULATION_FILE).is_file() else None


def check_existing_run(request: RunRequest, log: Log) -> None:
    """Raise UserError for a run that does not exist, and for settings that cannot be used with it.

    `log` receives a line as in `find_run_folder`.
    """
    if find_population(request.env, request.name) is not None:
        return  # whose settings are in another file
    folder = find_run_folder(request, log)
    check_effects(folder.load_settings(*request.layers), request.layers)


def plan_runs(request: RunRequest, log: Log = print) -> list[tuple[str, Settings]]:
    """Return name and settings of each new run: those that are given, and for all others suggestions.

    Raises:
        UserError: for settings that cannot be used, and for a name that exists already or is in training.
    """
    base, settings = complete_settings(request, log)
    name, run_names = _name_runs(request, settings)
    shared = [base, *request.layers]
    if settings.tracker.group is None and (request.repeat is not None or settings.population.size is not None):
        shared.append(("the name of the runs", {"tracker_config": {"group": name}}))
    runs = []
    for k, run_name in enumerate(run_names):
        seed = ("--repeat", {"base_config": {"seed": settings.base.seed + k}})
        runs.append((run_name, replace(resolve([*shared, seed]), command_line_layers=request.layers)))
    return runs


def _name_runs(request: RunRequest, settings: Settings) -> tuple[str, list[str]]:
    """Return the name that `base_config.name` gives now, and the names of the new runs, which start with it.

    Raises UserError for a name of a run that exists already or is in training, and for settings without an effect.
    """
    for source, tree in request.layers:
        if "tune" in tree:
            raise UserError(f"{source}: tune has no effect without the command tune")
        if settings.population.size is None and tree.get("population_config"):
            raise UserError(f"{source}: population_config has no effect without --population")
    name = format_run_name(settings.base.name, time.time())
    names = [name] if request.repeat is None else [f"{name}-{k + 1}" for k in range(request.repeat)]
    for each in names:
        _settle_replacement(request.env, each, lambda line: None)  # the run is replaced now, or stays
        (RunFolder.find_replaceable if request.replace else RunFolder.check_name_free)(request.env, each)
    return name, names


def find_run_folder(request: RunRequest, log: Log) -> RunFolder:
    """Return the folder of an existing run, after a replacement that was interrupted is completed or undone.

    `log` receives a line if the run is the old one again.
    """
    name = request.name or RunFolder.find(request.env, None).path.name
    _settle_replacement(request.env, name, log)
    return RunFolder.find(request.env, name)


def _settle_replacement(env: str, name: str, log: Log) -> None:
    """Complete or undo the replacement of a run whose process was killed; not while a process trains it.

    `log` receives a line if the old run is put back, since the new one has no checkpoint.
    """
    folder = RunFolder(RUNS / get_run_group(env) / name)
    if folder.is_replacement and not folder.lock.is_held_elsewhere() and not folder.settle():
        log(f"{folder} is the run from before --force, which was killed before the new run had a checkpoint")


def resolve_effective(base: Layer, own: Tree, given: Sequence[Layer]) -> Settings:
    """Return the settings of `base` with `given` on top.

    Raises:
        UserError: for settings that cannot be used, and for a setting in `own` or `given` without an effect.
    """
    settings = resolve([base, *given])
    try:
        alone = resolve([base])
    except UserError:  # it needs what `given` adds
        alone = settings
    check_effects(alone, [(base[0], own)])  # `given` may remove the effect of a setting in `base`
    check_effects(settings, given)
    return settings


def _read_base(request: RunRequest) -> tuple[Layer, Tree]:
    """Return the settings that new runs start from, and those of them that were written for this variant."""
    if not request.has_folder:
        named = (
            {"env_type": "GYM", "env_name": "env.py"}
            if request.make_env
            else {"env_type": find_env_type(request.env), "env_name": request.env}
        )
        return (request.env, {"base_config": named}), {}
    config = find_environment_folder(request.env) / CONFIG_FILE
    return (str(config), read_variant(config, request.variant)), read_own_variant(config, request.variant)


def read_env_type(request: RunRequest) -> Any:
    """Return the env_type of a new run, which is not checked. Raises UserError for an unknown environment."""
    return merge_layers([_read_base(request)[0], *request.layers])["base_config"]["env_type"]


def read_env_type_of_run(request: RunRequest) -> str:
    """Return the env_type of an existing run. Raises UserError for an unknown run."""
    return RunFolder.find(request.env, request.name).load_settings(*request.layers).base.env_type


def complete_settings(request: RunRequest, log: Log) -> tuple[Layer, Settings]:
    """Return the settings that new runs start from, and the same with `request.layers` on top.

    For a setting that is not given, the rules of the command init suggest a value, unless the settings or the
    environment exclude that. `log` receives a line for each suggestion. Raises UserError as `read_settings` does.
    """
    given = read_settings(request)
    base, config = given.base, given.settings.base
    if given.obstacle:
        if is_auto(given.tree):
            log(f"{config.algorithm} learns with the default settings, since {given.obstacle}")
        return base, given.settings
    from algorithm.adapters.recording import choose_offscreen_backends
    from algorithm.parts.suggested_settings import suggest_settings  # imports torch

    if given.settings.report.video_every is not None:
        choose_offscreen_backends()  # which some libraries read when they are imported
    make_env: Any = request.make_env
    has_network = request.blueprint is not None
    if request.has_folder:
        folder = find_environment_folder(request.env)
        make_env, has_network = load_environment(folder, config.env_name), has_file(folder / config.nn)
    try:
        suggested = suggest_settings(request.env, given.tree, make_env, has_network)
    except UnsupportedEnvironment as error:
        raise UserError(f"{'base_config' if request.has_folder else request.env}: {error}") from error
    log("settings that are not given, as suggested for this environment:")
    for line in (*suggested.describe(), *suggested.notes):
        log(line)
    if not request.has_folder and (folders := find_folders_of_id(request.env)):
        log(f"tuned settings for {request.env}: {' or '.join(map(get_command, folders))}")
    return complete_effective(suggested, base, given.own, request.layers)


def complete_effective(
    suggested: SuggestedSettings, base: Layer, own: Tree, given: Sequence[Layer]
) -> tuple[Layer, Settings]:
    """Return `base` with the suggestions for all other settings, and the same with `given` on top.

    Raises UserError as `resolve_effective` does; it says so if the given settings do not fit the suggested ones.
    """
    completed = (base[0], suggested.complete(base[1]))
    try:
        return completed, resolve_effective(completed, own, given)
    except UserError as error:
        try:
            resolve_effective((base[0], merge(base[1], suggested.required)), own, given)
        except UserError as alone:
            if str(alone) == str(error):  # no suggestion causes it
                raise
        names = ", ".join(path for path in suggested.reasons if path.rpartition(".")[2] in str(error))
        raise UserError(
            f"{error} (suggested for this environment: {names or 'other settings'}; "
            "base_config.suggest_settings=false uses the defaults)"
        ) from error


@contextmanager
def create_run(request: RunRequest, name: str, settings: Settings) -> Iterator[RunFolder]:
    """Make the folder of a new run and hold its lock within the block.

    It receives the code that a program has passed, too, so that the run can be loaded and resumed. A block that ends
    before the run has learned leaves everything as it was; a run that replaces another has learned once it has a
    checkpoint.
    """
    folder = make_run_folder(request, name, settings)
    try:
        with folder.lock:
            if request.make_env:
                folder.make_env = request.make_env
                write_env_file(folder.path, request.make_env)
            if request.blueprint is not None:
                write_network_file(folder.path, request.blueprint)
            yield folder
    finally:
        folder.settle()


def make_run_folder(request: RunRequest, name: str, settings: Settings) -> RunFolder:
    """Make the folder of a new run, with the code of the environment's folder."""
    source = find_environment_folder(request.env) if request.has_folder else None
    if request.replace and (old := RunFolder.find_replaceable(request.env, name)):
        old.set_aside()
    return RunFolder.create(request.env, source, name, settings.tree)


@contextmanager
def resume_run(request: RunRequest, log: Log) -> Iterator[tuple[RunFolder, Settings]]:
    """Yield the run to continue and its settings; its lock is held within the block.

    `log` receives a line for each setting that changes. Raises UserError for a change that is not possible, and for a
    run in training.
    """
    from algorithm.parts.components_builder import load_agent
    from algorithm.processes.cluster import check_actors_on_resume  # imports torch

    folder, settings = find_run(request, log)
    with folder.lock:
        check_links(folder.given_path)
        folder.recover(log)
        last = folder.read_last_settings()
        changes = list_changes(last, settings)
        check_actors_on_resume(last, settings)
        if request.use_env_nn:
            for name, role in folder.read_roles().items():  # the weights fit, before the run's own copy is replaced
                load_agent(settings, folder, folder.find_latest(), name, role)
            folder.copy_network(settings.base.nn)
        for line in changes:
            log(line)
        yield folder, settings


def find_run(request: RunRequest, log: Log) -> tuple[RunFolder, Settings]:
    """Return an existing run, and its settings merged with the command line; `log` receives a line about its code."""
    if request.make_env and not (RUNS / request.env).exists():
        raise UserError(f"there is no run under {RUNS / request.env} yet: train one first")
    folder = find_run_folder(request, log)
    folder.make_env = request.make_env
    if request.use_env_nn:
        folder = RunFolder(folder.given_path, find_environment_folder(request.env))
    settings = replace(folder.load_settings(*request.layers), command_line_layers=request.layers)
    check_effects(settings, request.layers)
    source = find_folder(locate_environment(request.env)) if request.has_folder else None
    differing = []
    for path in sorted(folder.path.glob("*.py")):
        original = source and source / path.name
        is_same = original and original.is_file() and path.read_bytes() == original.read_bytes()
        if not is_same and not (request.use_env_nn and path.name == settings.base.nn):
            differing.append(path.name)
    if differing and request.has_folder:
        difference = (
            f"other code than in {source}" if source else f"and no environment folder {request.env} has such code"
        )
        log(f"{folder} executes its own {', '.join(differing)}, {difference}")
    return folder, settings
