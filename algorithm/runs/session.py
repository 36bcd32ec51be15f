"""The run folders of the runs that a command line or a program requests: new runs and existing runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from algorithm.config.loader import Settings
from algorithm.config.unused_settings import check_effects
from algorithm.errors import UserError
from algorithm.parts.env_folder import RUNS
from algorithm.parts.given_code import write_env_file, write_network_file
from algorithm.parts.lock import check_links
from algorithm.parts.run_folder import RunFolder, find_environment_folder
from algorithm.parts.run_records import list_changes
from algorithm.processes.cluster import check_actors_on_resume
from algorithm.runs.run_requests import RunRequest, find_run_folder
from algorithm.runs.trained_agent import check_network


@contextmanager
def create_run(request: RunRequest, name: str, settings: Settings) -> Iterator[RunFolder]:
    """Make the run folder of a request and hold its lock within the block, as `open_new_run` does.

    It receives the code that a program has passed, so that the run can be loaded and resumed.
    """
    source = find_environment_folder(request.env) if request.has_folder else None
    with open_new_run(request.env, source, name, settings, request.replace) as folder:
        if request.make_env:
            folder.make_env = request.make_env
            write_env_file(folder.path, request.make_env)
        if request.blueprint is not None:
            write_network_file(folder.path, request.blueprint)
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
            check_network(settings, folder)  # before the run's own copy is replaced
            folder.copy_network(settings.base.nn)
            folder.nn_from = folder.path
        for line in changes:
            log(line)
        yield folder, settings


def find_run(request: RunRequest, log: Callable[[str], None]) -> tuple[RunFolder, Settings]:
    """Return an existing run, and its settings merged with the command line; `log` receives a line about its code."""
    if request.make_env and not (RUNS / request.env).exists():
        raise UserError(f"there is no run under {RUNS / request.env} yet: train one first")
    folder = find_run_folder(request, log)
    folder.make_env = request.make_env
    if request.use_env_nn:
        folder = RunFolder(folder.given_path, find_environment_folder(request.env))
    given = list(request.layers)
    settings = replace(folder.load_settings(*given), command_line_layers=given)
    check_effects(settings, given)
    _report_own_code(folder, request, settings.base.nn, log)
    return folder, settings


def _report_own_code(folder: RunFolder, request: RunRequest, network_file: str, log: Callable[[str], None]) -> None:
    """Report which code of the run, about to be executed, differs from the code in the environment's folder."""
    if not request.has_folder:
        return
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
