"""The command `--tune`: a search for settings with a display, and the table of its best trials."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from rich.table import Table

from algorithm.adapters.process_setup import FaultTolerantStream
from algorithm.api import run_training
from algorithm.cli.command_line import make_request
from algorithm.cli.display import live_display
from algorithm.cli.output import Output
from algorithm.config.loader import Settings
from algorithm.config.yaml_layers import format_value
from algorithm.parts.run_folder import RunFolder
from algorithm.program import get_command
from algorithm.runs.callbacks import Callback, RunResult
from algorithm.tools.tune.search import Search, open_search
from algorithm.tools.tune.study import TrialRecord
from algorithm.training.metrics import format_number

MAX_ROWS = 10  # trials in the table


def tune(options: argparse.Namespace, output: Output) -> None:
    """Search for settings, print the best trials and write the best settings as a variant."""
    request = make_request(options)

    def train(folder: RunFolder, settings: Settings, callbacks: Sequence[Callback]) -> RunResult:
        """Train a run of a trial with a display; its lines of text are in its run folder."""
        file = FaultTolerantStream((folder.path / "log.txt").open("a", encoding="utf-8"))
        with closing(file):

            def log(line: str) -> None:
                print(line, file=file, flush=True)

            with live_display(output.console, log) as display:
                return run_training(options.env, folder, settings, request.variant, [display, *callbacks], log)

    search = open_search(request, options.save_as, train, output.log)
    output.log(f"searching {len(search.space.dimensions)} settings of {options.env} in {search.folder}")
    try:
        search.run(options.tune, output.log)
    finally:
        trials = search.study.list_trials()
        finished = sum(trial.state != "running" for trial in trials)
        output.save_note = f" Finished trials ({finished}) are kept in {search.folder}; continue with the same command."
        output.result = {"study": search.folder.as_posix(), "trials": [_make_record(trial) for trial in trials]}
    output.print_table(make_trial_table(search, trials))
    best = search.save_best(output.log)
    output.result |= {"best": best and best.number, "variant": best and search.save_as}
    if best:
        output.log(f"train with it: {get_command()} {options.env} -c {search.save_as}")


def make_trial_table(search: Search, trials: Sequence[TrialRecord]) -> Table:
    """Return a table of the best trials, the best first."""
    table = Table()
    table.add_column("trial", justify="right")
    table.add_column(search.objective.unit, justify="right")
    for path in (dimension.path for dimension in search.space.dimensions):
        table.add_column(path, justify="right", overflow="fold")
    ranked = sorted((trial for trial in trials if trial.value is not None), key=search.study.make_rank)
    for trial in ranked[:MAX_ROWS]:
        values = [trial.values.get(dimension.path, "") for dimension in search.space.dimensions]
        table.add_row(str(trial.number), format_number(trial.value), *map(_format_cell, values))
    return table


def _format_cell(value: Any) -> str:
    return value if isinstance(value, str) else format_value(value)


def _make_record(trial: TrialRecord) -> dict[str, Any]:
    """Return a trial as JSON."""
    return {
        "number": trial.number,
        "state": trial.state,
        "value": trial.value,
        "settings": dict(trial.values),
        "reason": trial.reason,
    }
