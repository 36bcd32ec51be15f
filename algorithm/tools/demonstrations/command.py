"""The commands demonstrations, which describes a file, and record, which plays with the keyboard."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from algorithm.cli.commands import Command, add_environment, add_options, add_setting_options
from algorithm.cli.output import Output
from algorithm.demonstrations import SUFFIX, Demonstrations, check_new_recording
from algorithm.errors import UserError
from algorithm.training.metrics import format_number


class DemonstrationsCommand(Command):
    """The command that describes demonstrations."""

    help = "print episodes, steps, mean return and spaces of demonstrations"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "source",
            metavar="FILE",
            help="a recording (.npz), a file of Unity (.demo), or minari:ID",
        )

    def run(self, options: argparse.Namespace, output: Output) -> None:
        """Print a table with a row for each role."""
        from algorithm.parts.demonstrations import read_demonstrations

        roles = {name: describe(each) for name, each in read_demonstrations(options.source).items()}
        output.result = {"source": str(options.source), "roles": roles}
        rows = [
            (
                name,
                about["observations"],
                about["actions"],
                f"{about['episodes']:,}",
                f"{about['steps']:,}",
                format_number(about["mean_return"]),
            )
            for name, about in roles.items()
        ]
        output.print_table(("role", "observations", "actions"), ("episodes", "steps", "mean return"), rows)


def describe(demonstrations: Demonstrations) -> dict[str, Any]:
    """Return what is printed about the demonstrations of a role."""
    episodes, role = demonstrations.episodes, demonstrations.role
    returns = [float(episode.rewards.sum()) for episode in episodes]
    return {
        "observations": ", ".join(f"{name} {list(spec.shape)}" for name, spec in role.obs_specs.items()),
        "actions": str(role.action_spec),
        "episodes": len(episodes),
        "steps": sum(len(episode.rewards) for episode in episodes),
        "mean_return": float(np.mean(returns)),
        "returns": returns,
    }


class RecordCommand(Command):
    """The command with which a person plays and records episodes."""

    help = "play an environment of Gymnasium with the keyboard, and write the episodes to a file"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        add_environment(parser, "environment folder, or an id of Gymnasium")
        parser.add_argument("file", type=Path, metavar=f"FILE{SUFFIX}", help="a new file for the episodes")
        parser.add_argument(
            "--keys",
            nargs="+",
            default=[],
            metavar="KEY=ACTION",
            help="the discrete action of each key; any other key, or none, is action 0",
        )
        add_options(parser, "config")
        add_setting_options(parser)

    def check(self, options: argparse.Namespace, output: Output) -> None:
        """Raise UserError for a file that exists, and for keys that are no letters with numbers."""
        check_new_recording(options.file)
        options.keys = dict(_read_key(text) for text in options.keys)

    def run(self, options: argparse.Namespace, output: Output) -> None:
        """Play, and write what was played to its end."""
        from algorithm.adapters.adapter import UnsupportedEnvironment
        from algorithm.adapters.env_episodes import play_by_hand
        from algorithm.cli.commands import make_request
        from algorithm.runs.playing import save_recording
        from algorithm.runs.run_requests import make_playable_config

        try:
            recorded = play_by_hand(make_playable_config(make_request(options)), options.keys)
        except UnsupportedEnvironment as error:
            raise UserError(str(error)) from error
        save_recording(options.file, recorded, output.log)
        output.result = {"file": str(options.file)}


def _read_key(text: str) -> tuple[str, int]:
    key, equals, action = text.partition("=")
    if len(key) != 1 or not equals or not action.isdecimal():
        raise UserError(f"--keys {text}: expected a letter and the number of an action, as in a=1")
    return key, int(action)
