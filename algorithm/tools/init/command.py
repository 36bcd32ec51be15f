"""The command init: it writes an environment folder."""

from __future__ import annotations

import argparse

from algorithm.cli.commands import Command, add_options, add_setting_options, collect_layers
from algorithm.cli.output import Output
from algorithm.program import get_command


class InitCommand(Command):
    """The command that writes a commented environment folder."""

    help = "write a commented folder envs/GROUP/NAME for Gymnasium's NAME, or for any --set base_config.env_name=ID"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("folder", metavar="GROUP/NAME", help="name of the new folder below envs/")
        add_options(parser, force="replace config.yaml and nn.py of a folder that exists")
        add_setting_options(parser)

    def run(self, options: argparse.Namespace, output: Output) -> None:
        """Write the folder, and print its files and the reasons for its settings."""
        from algorithm.tools.init.folder import write_folder

        files, notes = write_folder(options.folder, collect_layers(options), options.force)
        output.result = {"folder": files[0].parent.as_posix(), "notes": notes}
        for line in (f"wrote {' and '.join(map(str, files))}", *notes):
            output.log(line)
        output.log(f"train it: {get_command(options.folder)}")
