"""The command tune: a search for settings with a display, and the table of its best trials."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

from algorithm.cli.commands import COUNT, Command, add_environment, add_options, add_setting_options, make_request
from algorithm.cli.output import Output
from algorithm.program import get_command

if TYPE_CHECKING:  # imports that take seconds
    from algorithm.config.loader import Settings
    from algorithm.parts.run_folder import RunFolder
    from algorithm.runs.callbacks import Callback, RunResult
    from algorithm.tools.tune.search import Search
    from algorithm.tools.tune.study import TrialRecord

DEFAULT_TRIALS = 20
MAX_ROWS = 10  # trials in the table


class TuneCommand(Command):
    """The command that searches for settings."""

    help = "search the space tune.space of the folder's config.yaml, and write the best settings as a variant"
    needs_folder = True
    heavy_module = "algorithm.tools.tune.search"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        add_environment(parser, "environment folder")
        parser.add_argument(
            "--trials",
            **COUNT,
            default=DEFAULT_TRIALS,
            help=f"number of trials after which the study ends, over all processes that join it; {DEFAULT_TRIALS} by "
            "default",
        )
        add_options(parser, "config", name="name of the study", force="replace the variant with the best settings")
        parser.add_argument(
            "--save-as",
            metavar="VARIANT",
            help="variant that receives the best settings; tuned, or tuned_VARIANT, by default",
        )
        add_setting_options(parser, "nn")

    def check(self, options: argparse.Namespace, output: Output) -> None:
        """Raise UserError for settings that cannot be used."""
        from algorithm.runs.run_requests import read_settings

        read_settings(make_request(options))

    def run(self, options: argparse.Namespace, output: Output) -> None:
        """Search for settings, print the best trials and write the best settings as a variant."""
        from algorithm.adapters.standard_streams import FaultTolerantStream
        from algorithm.api import run_training
        from algorithm.tools.tune.search import Search

        request = make_request(options)

        def train(folder: RunFolder, settings: Settings, callbacks: Sequence[Callback]) -> RunResult:
            """Train a run of a trial with a display; its lines of text are in its run folder."""
            with closing(FaultTolerantStream((folder.path / "log.txt").open("a", encoding="utf-8"))) as file:
                log = partial(print, file=file, flush=True)
                with output.display_run(log) as display:
                    return run_training(options.env, folder, settings, request.variant, [display, *callbacks], log)

        search = Search(request, options.save_as, train, output.log)
        output.log(f"searching {len(search.space.dimensions)} settings of {options.env} in {search.folder}")
        try:
            search.run(options.trials)
        finally:
            trials = search.study.list_trials()
            done = sum(trial.state != "running" for trial in trials)
            output.save_note = f" Finished trials ({done}) are kept in {search.folder}; continue with the same command."
            output.result = {"study": search.folder.as_posix(), "trials": [vars(trial) for trial in trials]}
        _print_best(search, trials, output)
        best = search.save_best()
        output.result |= {"best": best and best.number, "variant": best and search.save_as}
        if best:
            output.log(f"train with it: {get_command(options.env, '-c', search.save_as)}")


def _print_best(search: Search, trials: Sequence[TrialRecord], output: Output) -> None:
    """Print a table of the best trials, the best first."""
    from algorithm.config.yaml_layers import format_value
    from algorithm.training.metrics import format_number

    paths, rows = [dimension.path for dimension in search.space.dimensions], []
    for trial in search.study.rank(trials)[:MAX_ROWS]:
        values = [trial.settings.get(path, "") for path in paths]
        shown = [value if isinstance(value, str) else format_value(value) for value in values]
        rows.append((str(trial.number), format_number(trial.value), *shown))
    output.print_table((), ("trial", search.objective.unit, *paths), rows)
