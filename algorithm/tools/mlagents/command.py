"""The command import-mlagents: environment folders for the behaviors of a trainer configuration."""

from __future__ import annotations

import argparse
from pathlib import Path

from algorithm.cli.commands import Command, add_options
from algorithm.cli.output import Output
from algorithm.program import get_command


class ImportCommand(Command):
    """The command that converts a trainer configuration."""

    help = "write a folder envs/unity/NAME for each behavior of a trainer configuration of Unity ML-Agents"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("file", metavar="CONFIG.yaml", type=Path, help="the trainer configuration")
        add_options(parser, force="replace config.yaml and nn.py of folders that exist")

    def run(self, options: argparse.Namespace, output: Output) -> None:
        """Write the folders, and print what has no counterpart."""
        from algorithm.tools.mlagents.importing import import_file

        imported = import_file(options.file, options.force)
        output.result = {
            "folders": [folder.as_posix() for folder in imported.folders],
            "not_served": imported.unsupported,
            "notes": imported.notes,
        }
        for folder in imported.folders:
            output.log(f"wrote {folder / 'config.yaml'} and {folder / 'nn.py'}")
        for key, reason in imported.unsupported.items():
            output.log(f"{key}: not supported: {reason}")
        for line in imported.notes:
            output.log(line)
        for folder in imported.folders:
            output.log(f"train it: {get_command(f'{folder.parent.name}/{folder.name}')}")
