"""The commands list, report, compare and gallery."""

from __future__ import annotations

import argparse
from pathlib import Path

from algorithm.cli.commands import COUNT, FLAG, Command, add_environment, add_options
from algorithm.cli.output import Output

DEFAULT_SECONDS = 300  # of a run of the gallery
N_TEXTS = 3  # columns of the list of runs that are no numbers


class ListCommand(Command):
    """The command that prints a table of runs."""

    help = "list all runs, or the runs of one environment, with their results"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        add_environment(parser, "environment whose runs are listed; all runs by default", required=False)

    def run(self, options: argparse.Namespace, output: Output) -> None:
        """Print the table, and list the records for scripts."""
        from algorithm.parts.env_folder import RUNS
        from algorithm.runs.results import COLUMNS, format_record, list_runs

        records = list_runs(options.env, output.log)
        output.result = {"runs": records}
        rows = [(Path(record["run"]).relative_to(RUNS).as_posix(), *format_record(record)) for record in records]
        output.print_table(COLUMNS[:N_TEXTS], COLUMNS[N_TEXTS:], rows)


class ReportCommand(Command):
    """The command that writes the report and the model card of a run."""

    help = "write report.html and the model card README.md into the folder of a run"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        add_environment(parser, "environment of the run")
        add_options(parser, "name")

    def run(self, options: argparse.Namespace, output: Output) -> None:
        """Write the files, and print their paths."""
        from algorithm.parts.run_folder import RunFolder
        from algorithm.tools.reports.report_files import write_files

        folder = RunFolder.find(options.env, options.name).given_path
        report, card = write_files(folder, output.log)
        output.result = {
            "run": folder.as_posix(),
            "report": report.as_posix(),
            "model_card": None if card is None else card.as_posix(),
        }
        output.log(f"report:     {report}")
        if card:
            output.log(f"model card: {card}")


class CompareCommand(Command):
    """The command that compares runs: it prints tables, and writes a page and a picture."""

    help = "compare runs, grouped by their settings: curves, returns, goals, with intervals over seeds"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "runs",
            metavar="RUN_FOLDER",
            nargs="+",
            help="a run folder; a folder of runs, or a pattern, is all of its runs",
        )
        parser.add_argument(
            "--metric",
            metavar="METRIC",
            help="column of metrics.csv to compare; eval/return if all runs have base_config.evaluate_every, "
            "otherwise rollout/return",
        )

    def run(self, options: argparse.Namespace, output: Output) -> None:
        """Compare the runs."""
        from algorithm.tools.reports.comparison_output import NAME, compare_runs

        output.result = compare_runs(options.runs, options.metric, NAME, output)


class GalleryCommand(Command):
    """The command that trains environment folders, and shows their runs on a page."""

    help = "train every environment folder, or those of a group, and write a page with curves, videos and figures"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("folder", metavar="FOLDER", type=Path, help="folder of the page")
        add_environment(parser, "environment folder, or group of them; all by default", required=False)
        parser.add_argument(
            "--seconds",
            **COUNT,
            default=DEFAULT_SECONDS,
            help=f"time for which each run is trained at most, without the start of its process; {DEFAULT_SECONDS} by "
            "default",
        )
        parser.add_argument("--force", **FLAG, help="train again what is on the page")

    def run(self, options: argparse.Namespace, output: Output) -> None:
        """Train what is not on the page yet, and write the page."""
        from algorithm.tools.reports.gallery import show_gallery

        show_gallery(options.folder, options.env, options.seconds, options.force, output)
