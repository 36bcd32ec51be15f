"""The runs that a command line or a program requests: new runs and existing runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from algorithm.config.effects import check_effects
from algorithm.config.loader import Layer, Settings, read_own_variant, read_variant, resolve
from algorithm.errors import UserError
from algorithm.runs.config_history import list_changes
from algorithm.runs.play import check_network
from algorithm.runs.run_folder import RunFolder, find_environment_folder, format_run_name


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A request for a run of an environment folder.

    Attributes:
        env: name or path of the environment folder.
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
    """Return name and settings of each new run.

    Raises:
        UserError: for settings that cannot be used, and for a name that exists already or is in training.
    """
    config = find_environment_folder(request.env) / "config.yaml"
    variant, given = request.variant, list(request.layers)
    file_layers = [(str(config), read_variant(config, variant)), *given]
    settings = resolve(file_layers)
    check_effects(_resolve_file(file_layers[0], settings), [(str(config), read_own_variant(config, variant))])
    check_effects(settings, given)
    name = format_run_name(settings.base.name, time.time())
    runs = [(name, replace(settings, command_line_layers=given))]
    if request.repeat is not None:
        seeds = [("--repeat", {"base_config": {"seed": settings.base.seed + k}}) for k in range(request.repeat)]
        runs = [
            (f"{name}-{k + 1}", replace(resolve([*file_layers, seed]), command_line_layers=given))
            for k, seed in enumerate(seeds)
        ]
    for name, _ in runs:
        (RunFolder.find_replaceable if request.replace else RunFolder.check_name_free)(request.env, name)
    return runs


def _resolve_file(file: Layer, settings: Settings) -> Settings:
    """Return the settings of a file without the command line, which may remove the effect of settings in the file.

    Returns `settings` if the file needs what the command line adds.
    """
    try:
        return resolve([file])
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

    A block that ends before the run has learned leaves everything as it was.

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


@contextmanager
def resume_run(request: RunRequest, log: Callable[[str], None]) -> Iterator[tuple[RunFolder, Settings]]:
    """Yield the run to continue and its settings; its lock is held within the block.

    `log` receives a line for each setting that changes. Raises UserError for a change that is not possible, and for a
    run in training.
    """
    folder, settings = find_run(request, log)
    with folder.lock:
        folder.recover(log)
        changes = list_changes(folder.history.read_last(), settings)
        if request.use_env_nn:
            check_network(settings, folder)  # before the run's own copy is replaced
            folder.copy_network(settings)
            folder.nn_from = folder.path
        for line in changes:
            log(line)
        yield folder, settings


def find_run(request: RunRequest, log: Callable[[str], None]) -> tuple[RunFolder, Settings]:
    """Return an existing run, and its settings merged with the command line; `log` receives a line about its code."""
    folder = RunFolder.find(request.env, request.name)
    if request.use_env_nn:
        folder = RunFolder(folder.given_path, find_environment_folder(request.env))
    given = list(request.layers)
    settings = replace(folder.load_settings(*given), command_line_layers=given)
    check_effects(settings, given)
    _report_own_code(folder, request, settings, log)
    return folder, settings


def _report_own_code(folder: RunFolder, request: RunRequest, settings: Settings, log: Callable[[str], None]) -> None:
    """Report which code of the run, about to be executed, differs from the code in the environment's folder."""
    try:
        source = find_environment_folder(request.env)
    except UserError:
        source = None
    run_files = [
        path for path in sorted(folder.path.glob("*.py")) if not request.use_env_nn or path.name != settings.base.nn
    ]
    differing = [path.name for path in run_files if source is None or not _is_same(path, source / path.name)]
    if differing:
        difference = (
            f"other code than in {source}" if source else f"and no environment folder {request.env} has such code"
        )
        log(f"{folder} executes its own {', '.join(differing)}, {difference}")


def _is_same(one: Path, other: Path) -> bool:
    return other.is_file() and one.read_bytes() == other.read_bytes()
