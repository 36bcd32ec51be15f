"""The command that trains a population, and the report of its lineage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from algorithm.errors import UserError
from algorithm.program import get_command
from algorithm.training.metrics import format_number

if TYPE_CHECKING:  # imports that take seconds
    import argparse

    from algorithm.cli.output import Output
    from algorithm.config.loader import Settings
    from algorithm.population.folder import LineageRow, PopulationFolder
    from algorithm.runs.run_requests import RunRequest


def train_if_population(
    options: argparse.Namespace, output: Output, request: RunRequest, planned: Sequence[tuple[str, Settings]]
) -> bool:
    """Train the population that a command line requests, or return False if it requests single runs.

    Args:
        options: the options of the command line.
        output: receives lines for the user.
        request: the request of the command line.
        planned: name and settings of the new run; empty with --resume.
    """
    if planned and planned[0][1].population.size is None:
        return False
    from algorithm.population.runner import create_population, resume_population
    from algorithm.runs.run_requests import find_population

    if not planned:
        if (existing := find_population(request.env, request.name)) is None:
            return False
        with resume_population(request, existing, output.log) as (folder, settings):
            _train(options, output, None, folder, settings)
        return True
    name, settings = planned[0]
    with create_population(request, name, settings) as folder:
        _train(options, output, request.variant if request.has_folder else None, folder, settings)
    return True


def _train(
    options: argparse.Namespace, output: Output, variant: str | None, folder: PopulationFolder, settings: Settings
) -> None:
    """Train a population in its folder, and report its lineage and, if the settings request it, its members."""
    from algorithm.api import run_training
    from algorithm.parts.env_folder import find_folder
    from algorithm.population.member import LOG_FILE
    from algorithm.population.runner import train_population

    env, name = options.env, folder.path.name
    if options.seconds:
        raise UserError("--seconds is for single runs: population_config.timeout limits the time of an interval")
    if options.logger_in_file:
        output.log_to_file(folder.path / LOG_FILE)
    output.log(f"training {folder.size} members {name}-1 ... {name}-{folder.size} of the population {folder.path}")
    output.save_note = f" Checkpoints saved; resume with: {get_command()} {env} -n {name} --resume"
    try:
        train_population(env, variant, folder, settings, run_training, output.log)
    finally:
        if folder.has_learned():
            report_population(output, env, folder)
            if settings.report.report:
                from algorithm.tools.reports.report_files import write_report

                for member in folder.members:
                    if member.has_learned():
                        write_report(member.path, output.log)
        else:
            output.close_log_file()
            output.save_note = " Nothing was saved: no member had a checkpoint yet."
            if source := find_folder(env):
                output.removed_folders |= {str(member.path): str(source) for member in folder.members}


def report_population(output: Output, env: str, folder: PopulationFolder) -> None:
    """Print the lineage as a table, and the commands for the best member."""
    from algorithm.population.folder import find_best

    rows = folder.read_lineage(output.log)
    best = find_best(rows)
    output.result = {
        "population": folder.path.as_posix(),
        "best": None,
        "lineage": folder.lineage_path.as_posix(),
    }
    if best is None:
        return
    run = folder.members[best.member - 1]
    output.result["best"] = {"run": run.given_path.as_posix(), "return": best.mean_return, "settings": best.settings}
    output.print_table(_make_table(rows))
    output.log(f"lineage:   {folder.lineage_path}")
    output.log(f"play best: {get_command()} {env} -n {run.path.name} --run")


def _make_table(rows: Sequence[LineageRow]) -> Any:
    """Return a table with the last row of each member: its ancestors, settings and return."""
    from rich.table import Table

    table = Table()
    for column in ("member", "interval", "copies of", "env steps", "return", "settings"):
        table.add_column(column, justify="left" if column in ("settings", "copies of") else "right")
    for member, row in sorted({row.member: row for row in rows}.items()):
        parents = [str(each.parent) for each in rows if each.member == member and each.parent != member]
        settings = ", ".join(f"{path}={format_value(value)}" for path, value in row.settings.items())
        shown = "failed" if row.mean_return is None else format_number(row.mean_return)
        table.add_row(str(member), str(row.interval), " ".join(parents), f"{row.env_steps:,}", shown, settings)
    return table


def format_value(value: Any) -> str:
    """Return a value of a setting as text."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
