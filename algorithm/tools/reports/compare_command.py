"""The command that compares runs, and the comparison at the end of repeated runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from algorithm.errors import UserError, summarize_error
from algorithm.runs.commands import Output
from algorithm.tools.reports.comparison import Comparison, EnvironmentResult, OverallResult, compare, make_record
from algorithm.tools.reports.comparison_page import format_median, format_reached, write_page, write_picture
from algorithm.tools.reports.statistics import Improvement
from algorithm.training.metrics import format_number

NAME = "compare"  # of the page and of the picture, without their suffix


def compare_runs(runs: Sequence[str], metric: str | None, output: Output) -> None:
    """Compare run folders, or those in folders and patterns: print tables, and write a page and a picture."""
    output.result = _report(compare(runs, metric, output.log), NAME, output)


def compare_repeats(runs: Sequence[str], output: Output) -> None:
    """Compare the folders of repeated runs; an error is a line, and does not change the result of the runs.

    The result of `output` gets the item `comparison`.
    """
    name = Path(runs[0]).name.rpartition("-")[0]
    try:
        output.result["comparison"] = _report(compare(runs, None, output.log), f"{name}-{NAME}", output)
    except Exception as error:  # the runs are complete
        reason = str(error) if isinstance(error, UserError) else summarize_error(error)
        output.log(f"the runs are not compared: {reason}")


def _report(comparison: Comparison, name: str, output: Output) -> dict[str, Any]:
    """Print the tables of a comparison, and write its page and its picture. Return its record with their paths."""
    for result in comparison.environments:
        output.print_table(_make_table(result, comparison.metric))
        if result.improvements:
            output.print_table(_make_improvements_table(result.improvements, result.environment))
    if comparison.overall:
        _report_overall(comparison.overall, output)
    record = make_record(comparison)
    folder = comparison.folder
    for label, key, write in (("page:   ", "page", write_page), ("picture:", "picture", write_picture)):
        path = write(comparison, folder, name)
        record[key] = path.as_posix()
        output.log(f"{label} {path.as_posix()}")
    return record


def _make_table(result: EnvironmentResult, metric: str) -> Table:
    """Return a table of the groups of an environment."""
    table = Table(title=f"{result.environment}: {metric} at {result.score_at:,} env steps", title_justify="left")
    table.add_column("group", overflow="fold")
    for name in ("runs", "mean [95%]", "IQM [95%]", "goal", "env steps to goal", "CPU s to goal"):
        table.add_column(name, justify="right")
    for label, group in result.groups.items():
        performance = group.performance
        table.add_row(
            label,
            str(len(group.group.runs)),
            str(performance.mean),
            str(performance.iqm),
            format_reached(group),
            format_median(group.steps_to_goal, ",.0f"),
            format_median(group.cpu_seconds_to_goal, ",.1f"),
        )
    return table


def _make_improvements_table(improvements: Sequence[Improvement], title: str) -> Table:
    """Return a table with the probability of improvement of each pair of groups."""
    table = Table(title=title, title_justify="left")
    for name in ("a run of", "is above a run of"):
        table.add_column(name, overflow="fold")
    table.add_column("probability [95%]", justify="right")
    for each in improvements:
        table.add_row(each.label, each.other, str(each))
    return table


def _report_overall(overall: OverallResult, output: Output) -> None:
    """Print the tables over all environments, or why scores cannot be normalized."""
    if overall.obstacle:
        output.log(f"no normalized scores over all environments: {overall.obstacle}")
    else:
        for environment, (low, goal) in overall.references.items():
            output.log(f"normalized scores of {environment}: 0 is {format_number(low)}, 1 is {format_number(goal)}")
        table = Table(title="all environments: normalized scores", title_justify="left")
        for name in ("group", "mean [95%]", "IQM [95%]"):
            table.add_column(name, justify="left" if name == "group" else "right")
        for label, performance in overall.groups.items():
            table.add_row(label, str(performance.mean), str(performance.iqm))
        output.print_table(table)
    if overall.improvements:
        output.print_table(_make_improvements_table(overall.improvements, "all environments"))
