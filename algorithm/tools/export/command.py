"""The command export: a trained run as ONNX for Unity."""

from __future__ import annotations

import argparse

from algorithm.cli.commands import Command, add_environment, add_options, make_request
from algorithm.cli.output import Output

FORMATS = ("barracuda", "sentis", "sentis_dynamo", "plain")
FORMATS_HELP = (
    "barracuda: packages 1.x and 2.x of ML-Agents, sentis: 3.x and 4.x, sentis_dynamo: Sentis 2.6 and newer, "
    "plain: other programs"
)


class ExportCommand(Command):
    """The command that writes a trained run as ONNX."""

    help = "write a trained run as ONNX for Unity or other programs, one file for each kind of agent"
    heavy_module = "algorithm.tools.export.export"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        add_environment(parser, "environment of the run")
        add_options(parser, "name", "ckpt", "nn", "use_env_nn")
        parser.add_argument("--format", choices=FORMATS, help=f"{FORMATS_HELP}; by default base_config.export_format")

    def check(self, options: argparse.Namespace, output: Output) -> None:
        """Raise UserError for a run that does not exist, and for settings that cannot be used with it."""
        from algorithm.runs.run_requests import check_existing_run

        check_existing_run(make_request(options), output.log)

    def run(self, options: argparse.Namespace, output: Output) -> None:
        """Export the run into its folder. Raises ExportFailed for roles that Unity would reject."""
        from algorithm.parts.torch_setup import configure_torch
        from algorithm.runs.run_requests import find_run
        from algorithm.tools.export.export import export_roles
        from algorithm.tools.export.result import ExportFailed

        configure_torch()
        folder, settings = find_run(make_request(options), output.log)
        checkpoint = folder.read_checkpoint(options.ckpt, output.log)
        output.log(f"exporting {folder} after {checkpoint.counters.env_steps:,} env steps")
        kind = options.format or settings.base.export_format
        results = list(export_roles(settings, folder, checkpoint, folder.given_path, kind))
        failed = {result.role: result.violations for result in results if isinstance(result, ExportFailed)}
        for result in results:
            for line in failed.get(result.role, [str(result)]):
                output.log(line)
        output.result = {
            "run": folder.given_path.as_posix(),
            "exports": [
                {**vars(result), "path": result.path.as_posix()}
                for result in results
                if not isinstance(result, ExportFailed)
            ],
            "violations": failed,
        }
        if failed:
            raise ExportFailed(" and ".join(failed), [line for lines in failed.values() for line in lines])
