"""Training: new runs, repeated runs, resumed runs, populations."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from algorithm.runs.commands import Command, make_request

if TYPE_CHECKING:  # imports that take seconds
    from algorithm.cli.output import Output
    from algorithm.config.loader import Settings
    from algorithm.parts.run_folder import RunFolder


class TrainCommand(Command):
    """Training of new runs, and with `--resume` of an existing run."""

    heavy_module = "algorithm.api"

    def check(self, options: argparse.Namespace, output: Output) -> None:
        """Raise UserError for a run that cannot be trained."""
        from algorithm.runs.run_requests import check_existing_run, check_new_runs

        output.save_note = " Nothing was saved."  # before the first line, after which a signal may come at any time
        request = make_request(options)
        check_existing_run(request, output.log) if options.resume else check_new_runs(request)

    def run(self, options: argparse.Namespace, output: Output) -> None:
        """Train, and report the result of each run."""
        from algorithm.cli.population import train_if_population
        from algorithm.runs.results import format_repeats, summarize_repeats
        from algorithm.runs.run_requests import plan_runs
        from algorithm.runs.session import create_run, resume_run

        request = make_request(options)
        planned = [] if options.resume else plan_runs(request, output.log)
        if train_if_population(options, output, request, planned):
            return
        records: list[dict] = []  # the record of each run, in order
        try:
            if options.resume:
                with resume_run(request, output.log) as (folder, settings):
                    _learn(options, output, folder, settings, records)
            for name, settings in planned:
                with create_run(request, name, settings) as folder:
                    _learn(options, output, folder, settings, records)
        finally:
            if options.repeat:
                output.result = {"runs": records, "spread": summarize_repeats(records)}
                for line in format_repeats(records):
                    output.log(line)
            elif records:
                output.result = records[0]
        if len(records) > 1:
            from algorithm.tools.reports.comparison_output import compare_repeats

            compare_repeats([record["run"] for record in records], output)


def _learn(
    options: argparse.Namespace, output: Output, folder: RunFolder, settings: Settings, records: list[dict]
) -> None:
    """Train in a run folder with a display, and report the result."""
    from algorithm.api import run_training
    from algorithm.parts.env_folder import find_folder
    from algorithm.runs.callbacks import TimeLimit
    from algorithm.runs.results import RESULT_FILE, read_record, read_recorded_variant
    from algorithm.tools.reports.run_result import describe_saved, report_result

    if options.logger_in_file:
        output.log_to_file(folder.path / "log.txt")
    env_name = settings.base.env_name or options.env
    env_label = options.env if env_name.endswith(".py") else env_name
    output.log(f"training {env_label} with {settings.base.algorithm} in {folder}")
    source = find_folder(options.env)
    variant = (options.config or "default") if source else None
    if options.resume:
        variant = read_recorded_variant(folder.path / RESULT_FILE)
    limits = [TimeLimit(options.seconds)] if options.seconds else []
    try:
        with output.display_run(output.log, str(folder)) as display:
            result = run_training(options.env, folder, settings, variant, [display, *limits], output.log)
    finally:
        output.save_note = describe_saved(options.env, folder)
        if folder.has_learned():
            records.append({"run": folder.given_path.as_posix(), **read_record(folder.path, output.log)})
        elif not options.resume:
            output.close_log_file()
            if source:
                output.removed_folders[str(folder.path)] = str(source)
            if folder.replacement.has_backup:
                output.log(f"the new run has no checkpoint: {folder} is again the run that it was to replace")
    report_result(output.log, options.env, folder, result)
