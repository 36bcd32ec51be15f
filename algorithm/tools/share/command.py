"""The command share: a trained run on the Hugging Face Hub."""

from __future__ import annotations

import argparse
from pathlib import Path

from algorithm.cli.commands import FLAG, Command
from algorithm.cli.output import Output
from algorithm.config.registry import find_run_tool
from algorithm.errors import UserError


class ShareCommand(Command):
    """The command that uploads a run."""

    help = "upload weights, settings, network, model card and video of a run to the Hugging Face Hub"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("run_folder", metavar="RUN", help="a run folder, such as runs/gym/cartpole/NAME")
        parser.add_argument("repository", metavar="REPO", help="repository: user/name, or organization/name")
        parser.add_argument("--private", **FLAG, help="create a private repository")

    def run(self, options: argparse.Namespace, output: Output) -> None:
        """Upload the run. Raises UserError for a run that does not exist, and if the upload fails."""
        from algorithm.parts.hub import import_hub, upload_run
        from algorithm.parts.run_folder import RunFolder

        folder = RunFolder(Path(options.run_folder))
        if not folder.config_file.is_file():
            raise UserError(f"{options.run_folder} is no run folder; give one, such as runs/gym/cartpole/NAME")
        import_hub()
        if write_report := find_run_tool("report"):
            write_report(folder.path, lambda line: None)
        address = upload_run(folder, options.repository, options.private, output.log)
        output.result = {"run": folder.path.as_posix(), "repository": options.repository, "address": address}
        output.log(f"shared: {address}; load it: algorithm.load('hf://{options.repository}', trust_code=True)")
