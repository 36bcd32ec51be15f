"""Which runs a command line asks for: folders and settings of new ones, and of those that are there."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from algorithm.cli.command_line import overrides
from algorithm.config.effects import check_effects
from algorithm.config.loader import Layer, Settings, read_assignments, read_own_variant, read_variant, resolve
from algorithm.errors import UserError
from algorithm.runs.build import check_network
from algorithm.runs.resume import changed
from algorithm.runs.run_folder import RunFolder, environment_folder, run_name


def planned(options: argparse.Namespace) -> list[tuple[str, Settings]]:
    """Return name and settings of each new run. Raises UserError for a name that is taken or in training."""
    config = environment_folder(options.env) / "config.yaml"
    variant, given = options.config or "default", layers(options)
    below = [(str(config), read_variant(config, variant)), *given]
    settings = resolve(below)
    check_effects(_alone(below[0], settings), [(str(config), read_own_variant(config, variant))])
    check_effects(settings, given)
    name = run_name(settings.base.name, time.time())
    runs = [(name, replace(settings, given=given))]
    if options.repeat is not None:
        seeds = [("--repeat", {"base_config": {"seed": settings.base.seed + k}}) for k in range(options.repeat)]
        runs = [(f"{name}-{k + 1}", replace(resolve([*below, seed]), given=given)) for k, seed in enumerate(seeds)]
    for name, _ in runs:
        (RunFolder.find_replaceable if options.force else RunFolder.free)(options.env, name)
    return runs


def _alone(file: Layer, settings: Settings) -> Settings:
    """Resolve a file without the command line, which may remove the effect of settings in the file.

    Returns `settings` if the file needs what the command line adds.
    """
    try:
        return resolve([file])
    except UserError:
        return settings


@contextmanager
def create(options: argparse.Namespace, name: str, settings: Settings) -> Iterator[RunFolder]:
    """Make the folder of a new run and hold its lock within the block; with --force one of this name is set aside.

    A block that ends before the run has learned leaves everything as it was.
    """
    source = environment_folder(options.env)
    if options.force and (old := RunFolder.find_replaceable(options.env, name)):
        old.place.clear()
    folder = RunFolder.create(options.env, source, name, settings.tree)
    try:
        with folder.lock:
            yield folder
    finally:
        if folder.has_learned():
            folder.place.forget()
        else:
            folder.place.restore()


@contextmanager
def resumed(options: argparse.Namespace, say: Callable[[str], None]) -> Iterator[tuple[RunFolder, Settings]]:
    """Yield the run to continue and its settings; its lock is held within the block.

    `say` receives a line for each setting that changes. Raises UserError for a change that is not possible, and for a
    run in training.
    """
    folder, settings = found(options, say)
    with folder.lock:
        folder.recover(say)
        changes = changed(folder, settings)
        if options.use_env_nn:
            check_network(settings, folder)  # before the run's own copy is replaced
            folder.adopt_network(settings)
            folder.nn_from = folder.path
        for line in changes:
            say(line)
        yield folder, settings


def found(options: argparse.Namespace, say: Callable[[str], None]) -> tuple[RunFolder, Settings]:
    """Return an existing run, and its settings merged with the command line; `say` receives a line about its code."""
    folder = RunFolder.find(options.env, options.name)
    if options.use_env_nn:
        folder = RunFolder(folder.given, environment_folder(options.env))
    given = layers(options)
    settings = replace(folder.settings(*given), given=given)
    check_effects(settings, given)
    _report_own_code(folder, options, settings, say)
    return folder, settings


def _report_own_code(
    folder: RunFolder, options: argparse.Namespace, settings: Settings, say: Callable[[str], None]
) -> None:
    """Report which code of the run, about to be executed, differs from that in the environment's folder."""
    try:
        source = environment_folder(options.env)
    except UserError:
        source = None
    own = [path for path in sorted(folder.path.glob("*.py")) if not options.use_env_nn or path.name != settings.base.nn]
    differing = [path.name for path in own if source is None or not _is_same(path, source / path.name)]
    if differing:
        what = f"other code than in {source}" if source else f"and no environment folder {options.env} has such code"
        say(f"{folder} executes its own {', '.join(differing)}, {what}")


def _is_same(one: Path, other: Path) -> bool:
    return other.is_file() and one.read_bytes() == other.read_bytes()


def layers(options: argparse.Namespace) -> list[Layer]:
    """The settings that the command line puts on top of files; flags come last."""
    return [
        ("--set", read_assignments(options.set or [])),
        ("--env_args", read_assignments(options.env_args or [], "--env_args", "base_config.env_args.")),
        ("the command line", overrides(options)),
    ]
