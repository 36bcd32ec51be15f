"""Which runs a command line asks for: folders and settings of new ones, and of those that are there."""

from __future__ import annotations

import argparse
import time

from algorithm.experiment.assembly import check_network
from algorithm.experiment.command_line import overrides
from algorithm.experiment.effects import check_effects
from algorithm.experiment.errors import UserError
from algorithm.experiment.resume import changed
from algorithm.experiment.run_folder import RunFolder, environment_folder, run_name
from algorithm.experiment.settings import Layer, Settings, read_assignments, read_own_variant, read_variant, resolve


def planned(options: argparse.Namespace) -> list[tuple[str, Settings]]:
    """Name and settings of each new run. Raises UserError for a name that is taken."""
    config = environment_folder(options.env) / "config.yaml"
    variant, given = options.config or "default", layers(options)
    below = [(str(config), read_variant(config, variant)), *given]
    settings = resolve(below)
    check_effects(_alone(below[0], settings), [(str(config), read_own_variant(config, variant))])
    check_effects(settings, given)
    name = run_name(settings.base.name, time.time())
    runs = [(name, settings)]
    if options.repeat is not None:
        seeds = [("--repeat", {"base_config": {"seed": settings.base.seed + k}}) for k in range(options.repeat)]
        runs = [(f"{name}-{k + 1}", resolve([*below, seed])) for k, seed in enumerate(seeds)]
    if not options.force:
        for name, _ in runs:
            RunFolder.free(options.env, name)
    return runs


def _alone(file: Layer, settings: Settings) -> Settings:
    """Resolve a file without the command line, which may take the effect from what the file sets.

    Returns `settings` if the file needs what the command line adds.
    """
    try:
        return resolve([file])
    except UserError:
        return settings


def create(options: argparse.Namespace, name: str, settings: Settings) -> RunFolder:
    """The folder of a new run; with --force one of this name is set aside."""
    if options.force:
        RunFolder.set_aside(options.env, name)
    return RunFolder.create(options.env, environment_folder(options.env), name, settings.tree)


def resumed(options: argparse.Namespace) -> tuple[RunFolder, Settings, list[str]]:
    """The run to go on with, its settings, and a line for each that changes. Raises UserError for what cannot."""
    folder, settings = found(options)
    changes = changed(folder, settings)
    if options.use_env_nn:
        check_network(settings, folder)  # before the run's own copy is replaced
        folder.adopt_network(settings)
    return RunFolder(folder.path), settings, changes


def found(options: argparse.Namespace) -> tuple[RunFolder, Settings]:
    """A run that is there, and its settings under those of the command line."""
    folder = RunFolder.find(options.env, options.name)
    if options.use_env_nn:
        folder = RunFolder(folder.path, environment_folder(options.env))
    given = layers(options)
    settings = folder.settings(*given)
    check_effects(settings, given)
    return folder, settings


def layers(options: argparse.Namespace) -> list[Layer]:
    """The settings that the command line puts on top of files; flags come last."""
    return [
        ("--set", read_assignments(options.set or [])),
        ("--env_args", read_assignments(options.env_args or [], "--env_args", "base_config.env_args.")),
        ("the command line", overrides(options)),
    ]
