"""The run and the settings that the options of a command line request."""

from __future__ import annotations

import argparse

from algorithm.cli.options import OPTIONS, TRAIN
from algorithm.config.loader import read_assignments
from algorithm.config.trees import Layer, nest
from algorithm.runs.session import RunRequest


def collect_flag_layers(options: argparse.Namespace) -> list[Layer]:
    """Return a layer of settings for each flag that sets one, but for --env_args, whose values are YAML."""
    layers = []
    for option in OPTIONS:
        value = getattr(options, option.name)
        # The name of an existing run selects it, and sets nothing.
        selects_run = option.name == "name" and options.mode != TRAIN
        if option.setting and option.name != "env_args" and value is not None and not selects_run:
            layers.append((option.spelling, nest(option.setting, value)))
    return layers


def collect_layers(options: argparse.Namespace) -> list[Layer]:
    """Return the settings of the command line, with the options that set them; flags override --set."""
    return [
        ("--set", read_assignments(options.set or [])),
        ("--env_args", read_assignments(options.env_args or [], "--env_args", "base_config.env_args.")),
        *collect_flag_layers(options),
    ]


def make_request(options: argparse.Namespace) -> RunRequest:
    """Return the run that the options request."""
    return RunRequest(
        env=options.env,
        name=options.name,
        variant=options.config or "default",
        layers=collect_layers(options),
        repeat=options.repeat,
        replace=options.force,
        use_env_nn=options.use_env_nn,
    )
