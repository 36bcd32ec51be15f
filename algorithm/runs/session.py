"""The runs that a command line or a program requests: new runs and existing runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from algorithm.config.effects import check_effects
from algorithm.config.loader import Layer, Settings, Tree, read_own_variant, read_variant, resolve
from algorithm.errors import UserError
from algorithm.runs.agent_config import AgentConfigs
from algorithm.runs.cluster import check_actors_on_resume
from algorithm.runs.env_folder import RUNS, get_run_group
from algorithm.runs.lock import check_links
from algorithm.runs.run_folder import RunFolder, find_environment_folder, format_run_name
from algorithm.runs.run_records import list_changes
from algorithm.runs.trained_agent import check_network


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A request for a run.

    Attributes:
        env: name or path of the environment folder; without one, the name under which the run folder is filed.
        name: name of an existing run; None for the latest. The name of a new run is a setting.
        variant: variant of the folder's config.yaml, for a new run.
        layers: settings on top of the files, each with its source for messages.
        repeat: number of runs with consecutive seeds; None for a single run.
        replace: whether a new run replaces an existing run of its name.
        use_env_nn: whether an existing run takes nn.py from the environment folder instead of its own copy.
    """

    env: str
    name: str | None = None
    variant: str = "default"
    layers: Sequence[Layer] = ()
    repeat: int | None = None
    replace: bool = False
    use_env_nn: bool = False


def plan_runs(request: RunRequest) -> list[tuple[str, Settings]]:
    """Return name and settings of each new run in an environment folder.

    Raises:
        UserError: for settings that cannot be used, and for a name that exists already or is in training.
    """
    config = find_environment_folder(request.env) / "config.yaml"
    file_layer = (str(config), read_variant(config, request.variant))
    return plan_runs_from(file_layer, read_own_variant(config, request.variant), request)


def plan_runs_from(base: Layer, own: Tree, request: RunRequest) -> list[tuple[str, Settings]]:
    """Return name and settings of each new run, which has the settings of `base` with those of the request on top.

    Args:
        base: settings to start from, of a file or suggested.
        own: the settings of `base` that were written for this run, and so must have an effect.
        request: the request; its `variant` is already in `base`.

    Raises:
        UserError: for settings that cannot be used, and for a name that exists already or is in training.
    """
    given = list(request.layers)
    settings = resolve_effective(base, own, given)
    if unused := [source for source, tree in given if "tune" in tree]:
        raise UserError(f"{unused[0]}: tune has no effect without --tune")
    for source, tree in given:
        if settings.population.size is None and tree.get("population_config"):
            raise UserError(f"{source}: population_config has no effect without --population")
    name = format_run_name(settings.base.name, time.time())
    grouped: list[Layer] = []
    if settings.tracker.group is None and (request.repeat is not None or settings.population.size is not None):
        grouped = [("the name of the runs", {"tracker_config": {"group": name}})]
        settings = resolve([base, *given, *grouped])
    runs = [(name, replace(settings, command_line_layers=given))]
    if request.repeat is not None:
        seeds = [("--repeat", {"base_config": {"seed": settings.base.seed + k}}) for k in range(request.repeat)]
        runs = [
            (f"{name}-{k + 1}", replace(resolve([base, *given, *grouped, seed]), command_line_layers=given))
            for k, seed in enumerate(seeds)
        ]
    for name, _ in runs:
        _settle_replacement(request.env, name, lambda line: None)  # the run is replaced now, or stays
        (RunFolder.find_replaceable if request.replace else RunFolder.check_name_free)(request.env, name)
    return runs


def resolve_effective(base: Layer, own: Tree, given: Sequence[Layer]) -> Settings:
    """Return the settings of `base` with `given` on top.

    Raises:
        UserError: for settings that cannot be used, and for a setting in `own` or `given` without an effect.
    """
    settings = resolve([base, *given])
    check_effects(_resolve_base(base, settings), [(base[0], own)])
    check_effects(settings, given)
    return settings


def _resolve_base(base: Layer, settings: Settings) -> Settings:
    """Resolve `base` without the settings of the request, which may remove the effect of settings in it.

    Returns `settings` if `base` needs what the request adds.
    """
    try:
        return resolve([base])
    except UserError:
        return settings


@contextmanager
def create_run(request: RunRequest, name: str, settings: Settings) -> Iterator[RunFolder]:
    """Make the run folder of a request and hold its lock within the block, as `open_new_run` does."""
    with open_new_run(request.env, find_environment_folder(request.env), name, settings, request.replace) as folder:
        yield folder


@contextmanager
def open_new_run(
    env: str, source: Path | None, name: str, settings: Settings, replace_existing: bool
) -> Iterator[RunFolder]:
    """Make the folder of a new run and hold its lock within the block.

    A block that ends before the run has learned leaves everything as it was; a run that replaces another has learned
    once it has a checkpoint.

    Args:
        env: name or path of the environment, for the place of the run folder.
        source: the environment folder whose code is copied; None without one.
        name: name of the run.
        settings: resolved settings, which are written to the folder.
        replace_existing: whether a run of this name is replaced.
    """
    if replace_existing and (old := RunFolder.find_replaceable(env, name)):
        old.replacement.set_aside()
    folder = RunFolder.create(env, source, name, settings.tree)
    try:
        with folder.lock:
            yield folder
    finally:
        if folder.has_learned():
            folder.replacement.discard()
        else:
            folder.replacement.restore()


def _settle_replacement(env: str, name: str, log: Callable[[str], None]) -> None:
    """Complete or undo the replacement of a run whose process was killed; not while a process trains it.

    `log` receives a line if the old run is put back, since the new one has no checkpoint.
    """
    folder = RunFolder(RUNS / get_run_group(env) / name)
    if not folder.replacement.has_backup or folder.lock.is_held_elsewhere():
        return
    if folder.has_learned():
        folder.replacement.discard()
    else:
        folder.replacement.restore()
        log(f"{folder} is the run from before --force, which was killed before the new run had a checkpoint")


@contextmanager
def resume_run(request: RunRequest, log: Callable[[str], None]) -> Iterator[tuple[RunFolder, Settings]]:
    """Yield the run to continue and its settings; its lock is held within the block.

    `log` receives a line for each setting that changes. Raises UserError for a change that is not possible, and for a
    run in training.
    """
    folder, settings = find_run(request, log)
    with folder.lock:
        check_links(folder.given_path)
        folder.recover(log)
        last = folder.history.read_last()
        changes = list_changes(last, settings)
        check_actors_on_resume(last, settings)
        if request.use_env_nn:
            check_network(AgentConfigs(settings), folder)  # before the run's own copy is replaced
            folder.copy_network(settings.base.nn)
            folder.nn_from = folder.path
        for line in changes:
            log(line)
        yield folder, settings


def find_run(request: RunRequest, log: Callable[[str], None]) -> tuple[RunFolder, Settings]:
    """Return an existing run, and its settings merged with the command line; `log` receives a line about its code."""
    name = request.name or RunFolder.find(request.env, None).path.name
    _settle_replacement(request.env, name, log)
    folder = RunFolder.find(request.env, name)
    if request.use_env_nn:
        folder = RunFolder(folder.given_path, find_environment_folder(request.env))
    given = list(request.layers)
    settings = replace(folder.load_settings(*given), command_line_layers=given)
    check_effects(settings, given)
    _report_own_code(folder, request, settings.base.nn, log)
    return folder, settings


def _report_own_code(folder: RunFolder, request: RunRequest, network_file: str, log: Callable[[str], None]) -> None:
    """Report which code of the run, about to be executed, differs from the code in the environment's folder."""
    try:
        source = find_environment_folder(request.env)
    except UserError:
        source = None
    run_files = [
        path for path in sorted(folder.path.glob("*.py")) if not request.use_env_nn or path.name != network_file
    ]
    differing = [path.name for path in run_files if source is None or not _is_same(path, source / path.name)]
    if differing:
        difference = (
            f"other code than in {source}" if source else f"and no environment folder {request.env} has such code"
        )
        log(f"{folder} executes its own {', '.join(differing)}, {difference}")


def _is_same(one: Path, other: Path) -> bool:
    return other.is_file() and one.read_bytes() == other.read_bytes()
