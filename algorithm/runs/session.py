"""Which runs a command line asks for: folders and settings of new ones, and of those that are there."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from algorithm.cli.command_line import collect_flag_layers
from algorithm.config.effects import check_effects
from algorithm.config.loader import Layer, Settings, read_assignments, read_own_variant, read_variant, resolve
from algorithm.errors import UserError
from algorithm.runs.config_history import list_changes
from algorithm.runs.play import check_network
from algorithm.runs.run_folder import RunFolder, find_environment_folder, format_run_name


def plan_runs(options: argparse.Namespace) -> list[tuple[str, Settings]]:
    """Return name and settings of each new run. Raises UserError for a name that is taken or in training."""
    config = find_environment_folder(options.env) / "config.yaml"
    variant, given = options.config or "default", read_layers(options)
    file_layers = [(str(config), read_variant(config, variant)), *given]
    settings = resolve(file_layers)
    check_effects(_resolve_file(file_layers[0], settings), [(str(config), read_own_variant(config, variant))])
    check_effects(settings, given)
    name = format_run_name(settings.base.name, time.time())
    runs = [(name, replace(settings, command_line_layers=given))]
    if options.repeat is not None:
        seeds = [("--repeat", {"base_config": {"seed": settings.base.seed + k}}) for k in range(options.repeat)]
        runs = [
            (f"{name}-{k + 1}", replace(resolve([*file_layers, seed]), command_line_layers=given))
            for k, seed in enumerate(seeds)
        ]
    for name, _ in runs:
        (RunFolder.find_replaceable if options.force else RunFolder.check_name_free)(options.env, name)
    return runs


def _resolve_file(file: Layer, settings: Settings) -> Settings:
    """Resolve a file without the command line, which may remove the effect of settings in the file.

    Returns `settings` if the file needs what the command line adds.
    """
    try:
        return resolve([file])
    except UserError:
        return settings


@contextmanager
def create_run(options: argparse.Namespace, name: str, settings: Settings) -> Iterator[RunFolder]:
    """Make the folder of a new run and hold its lock within the block; with --force one of this name is set aside.

    A block that ends before the run has learned leaves everything as it was.
    """
    source = find_environment_folder(options.env)
    if options.force and (old := RunFolder.find_replaceable(options.env, name)):
        old.replacement.set_aside()
    folder = RunFolder.create(options.env, source, name, settings.tree)
    try:
        with folder.lock:
            yield folder
    finally:
        if folder.has_learned():
            folder.replacement.discard()
        else:
            folder.replacement.restore()


@contextmanager
def resume_run(options: argparse.Namespace, log: Callable[[str], None]) -> Iterator[tuple[RunFolder, Settings]]:
    """Yield the run to continue and its settings; its lock is held within the block.

    `log` receives a line for each setting that changes. Raises UserError for a change that is not possible, and for a
    run in training.
    """
    folder, settings = find_run(options, log)
    with folder.lock:
        folder.recover(log)
        changes = list_changes(folder.history.read_last(), settings)
        if options.use_env_nn:
            check_network(settings, folder)  # before the run's own copy is replaced
            folder.copy_network(settings)
            folder.nn_from = folder.path
        for line in changes:
            log(line)
        yield folder, settings


def find_run(options: argparse.Namespace, log: Callable[[str], None]) -> tuple[RunFolder, Settings]:
    """Return an existing run, and its settings merged with the command line; `log` receives a line about its code."""
    folder = RunFolder.find(options.env, options.name)
    if options.use_env_nn:
        folder = RunFolder(folder.given_path, find_environment_folder(options.env))
    given = read_layers(options)
    settings = replace(folder.load_settings(*given), command_line_layers=given)
    check_effects(settings, given)
    _report_own_code(folder, options, settings, log)
    return folder, settings


def _report_own_code(
    folder: RunFolder, options: argparse.Namespace, settings: Settings, log: Callable[[str], None]
) -> None:
    """Report which code of the run, about to be executed, differs from that in the environment's folder."""
    try:
        source = find_environment_folder(options.env)
    except UserError:
        source = None
    run_files = [
        path for path in sorted(folder.path.glob("*.py")) if not options.use_env_nn or path.name != settings.base.nn
    ]
    differing = [path.name for path in run_files if source is None or not _is_same(path, source / path.name)]
    if differing:
        difference = (
            f"other code than in {source}" if source else f"and no environment folder {options.env} has such code"
        )
        log(f"{folder} executes its own {', '.join(differing)}, {difference}")


def _is_same(one: Path, other: Path) -> bool:
    return other.is_file() and one.read_bytes() == other.read_bytes()


def read_layers(options: argparse.Namespace) -> list[Layer]:
    """The settings that the command line puts on top of files; flags come last."""
    return [
        ("--set", read_assignments(options.set or [])),
        ("--env_args", read_assignments(options.env_args or [], "--env_args", "base_config.env_args.")),
        *collect_flag_layers(options),
    ]
