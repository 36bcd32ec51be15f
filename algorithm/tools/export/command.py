"""The command export: a trained run as ONNX for Unity."""

from __future__ import annotations

import argparse

from algorithm.cli.commands import FLAG, Command, add_environment, add_options, make_request
from algorithm.cli.output import Output


class ExportCommand(Command):
    """The command that writes a trained run as ONNX."""

    help = "write a trained run as ONNX for Unity, one file for each kind of agent"
    heavy_module = "algorithm.tools.export.export"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        add_environment(parser, "environment of the run")
        add_options(parser, "name", "ckpt", "nn", "use_env_nn")
        parser.add_argument("--barracuda", **FLAG, help="export in ONNX opset 9, for packages 1.x and 2.x of ML-Agents")

    def check(self, options: argparse.Namespace, output: Output) -> None:
        """Raise UserError for a run that does not exist, and for settings that cannot be used with it."""
        from algorithm.runs.run_requests import check_existing_run

        check_existing_run(make_request(options), output.log)

    def run(self, options: argparse.Namespace, output: Output) -> None:
        """Export the run into its folder. Raises ExportFailed for roles that Unity would reject."""
        from algorithm.parts.torch_setup import configure_torch
        from algorithm.runs.run_requests import find_run
        from algorithm.tools.export.export import ExportFailed, export_roles
        from algorithm.tools.export.graph import BARRACUDA_OPSET, OPSET

        configure_torch()
        folder, settings = find_run(make_request(options), output.log)
        checkpoint = folder.read_checkpoint(options.ckpt, output.log)
        output.log(f"exporting {folder} after {checkpoint.counters.env_steps:,} env steps")
        opset = BARRACUDA_OPSET if options.barracuda else OPSET
        results = list(export_roles(settings, folder, checkpoint, folder.given_path, opset))
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
