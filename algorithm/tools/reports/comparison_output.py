"""The output of a comparison: tables on the terminal, the page compare.html, the picture compare.svg, a record."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from pydantic_core import to_json

from algorithm.atomic_io import replace_text
from algorithm.cli.output import Output
from algorithm.errors import UserError, summarize_error
from algorithm.runs.results import describe_state
from algorithm.tools.reports.charts import Chart, Line, Row, draw_lines, draw_picture, draw_rows, find_robust_range
from algorithm.tools.reports.comparison import (
    Comparison,
    EnvironmentResult,
    GroupResult,
    compare,
    list_differing_settings,
)
from algorithm.tools.reports.page import render
from algorithm.tools.reports.statistics import Estimate, Improvement, Performance
from algorithm.training.metrics import UNKNOWN, format_number

NAME = "compare"  # of the page and of the picture, without their suffix
MAX_FAINT_RUNS = 20  # a group with more runs shows their mean only
CURVE_SIZE = (560.0, 320.0)  # pixels
PROBABILITIES = (0.0, 1.02)  # range of an axis
COLUMNS = ("runs", "mean [95%]", "IQM [95%]", "goal", "env steps to goal", "CPU s to goal")  # of the figures of groups
IQM_WIDTH = 340.0  # pixels: this chart is beside the curves
# The attributes of a Comparison that are not in its record: curves, and what the page alone shows.
_UNRECORDED_RESULT: Any = {
    "groups": {"__all__": {"thresholds", "profile", "env_steps", "mean_curve"}},
    "improvements": {"__all__": {"chance"}},
}
UNRECORDED: Any = {"environments": {"__all__": _UNRECORDED_RESULT}, "overall": _UNRECORDED_RESULT}


def compare_runs(runs: Sequence[str], metric: str | None, name: str, output: Output) -> dict[str, Any]:
    """Compare run folders, or those in folders and patterns: print tables, and write a page and a picture.

    They are written alongside the first run folder, as <name>.html and <name>.svg. Returns the figures in JSON with
    their paths; the interval of a single run and an unknown number are null.
    """
    comparison = compare(runs, metric, output.log)
    _print_tables(comparison, output)
    first = comparison.environments[0].groups[0].runs[0].folder
    page, picture = write_files(comparison, (first if first.name else first.absolute()).parent, name)
    output.log(f"page:    {page.as_posix()}")
    output.log(f"picture: {picture.as_posix()}")
    content = to_json(
        comparison,
        exclude=UNRECORDED,
        inf_nan_mode="null",
        fallback=lambda value: value.tolist() if isinstance(value, np.ndarray) else str(value),
    )
    return {**json.loads(content), "page": page.as_posix(), "picture": picture.as_posix()}


def compare_repeats(runs: Sequence[str], output: Output) -> None:
    """Compare the folders of repeated runs; an error is a line, and does not change the result of the runs.

    The result of `output` gets the item `comparison`.
    """
    name = Path(runs[0]).name.rpartition("-")[0]
    try:
        output.result["comparison"] = compare_runs(runs, None, f"{name}-{NAME}", output)
    except Exception as error:  # the runs are complete
        reason = str(error) if isinstance(error, UserError) else summarize_error(error)
        output.log(f"the runs are not compared: {reason}")


def _print_tables(comparison: Comparison, output: Output) -> None:
    """Print the tables of each environment and of all together, or why their scores cannot be normalized."""
    for result in comparison.environments:
        rows = [(group.label, *list_figures(group)) for group in result.groups]
        title = f"{result.environment}: {comparison.metric} at {result.env_steps:,} env steps"
        output.print_table(("group",), COLUMNS, rows, title)
        _print_improvements(result.environment, result.improvements, output)
    if overall := comparison.overall:
        if overall.obstacle:
            output.log(f"no normalized scores over all environments: {overall.obstacle}")
        else:
            for environment, ends in overall.references.items():
                start, goal = format_number(ends["start"]), format_number(ends["goal"])
                output.log(f"normalized scores of {environment}: 0 is {start}, 1 is {goal}")
            scores = [(group.label, str(group.mean), str(group.iqm)) for group in overall.groups]
            output.print_table(("group",), COLUMNS[1:3], scores, "all environments: normalized scores")
        _print_improvements("all environments", overall.improvements, output)


def _print_improvements(title: str, improvements: Sequence[Improvement], output: Output) -> None:
    """Print a table with the probability of improvement of each pair of groups, if there are any."""
    rows = [(each.label, each.other, str(each)) for each in improvements]
    if rows:
        output.print_table(("a run of", "is above a run of"), ("probability [95%]",), rows, title)


def write_files(comparison: Comparison, folder: Path, name: str) -> tuple[Path, Path]:
    """Write the page <name>.html and the mean curves <name>.svg into a folder; return their paths."""
    page, picture, charts = folder / f"{name}.html", folder / f"{name}.svg", ComparisonCharts(comparison)
    text = render(
        "compare.html",
        comparison=comparison,
        charts=charts,
        columns=COLUMNS,
        list_figures=list_figures,
        list_differing_settings=list_differing_settings,
        describe_state=describe_state,
    )
    replace_text(page, text)
    curves = [charts.draw_curves(result, result.environment) for result in comparison.environments]
    replace_text(picture, draw_picture(curves).to_svg_file())
    return page, picture


def list_figures(group: GroupResult) -> Sequence[str]:
    """Return the figures of a group as text, in the order of `COLUMNS`; a dash for those of a goal without one."""
    n_runs, has_goal = len(group.runs), any(run.goal is not None for run in group.runs)
    return (
        str(n_runs),
        str(group.mean),
        str(group.iqm),
        f"{group.reached} of {n_runs}" if has_goal else UNKNOWN,
        format_range(group.env_steps_to_goal, ",.0f"),
        format_range(group.cpu_seconds_to_goal, ",.1f"),
    )


def format_range(values: Sequence[float] | None, form: str) -> str:
    """Return the median and the range of values to the goal; a run that did not reach it is above all others.

    A dash if the values are unknown, or if half of the runs did not reach it.
    """
    if values is None or not isfinite(middle := median(values)):
        return UNKNOWN
    high = max(values)
    return f"{middle:{form}} ({min(values):{form}} to {f'{high:{form}}' if isfinite(high) else 'not reached'})"


class ComparisonCharts:
    """The charts of a comparison, in which each label of a group has its own color.

    Attributes:
        colors: number of the color of each label.
    """

    def __init__(self, comparison: Comparison):
        labels = dict.fromkeys(group.label for result in comparison.environments for group in result.groups)
        self.colors = {label: number for number, label in enumerate(labels)}
        self.metric = comparison.metric

    def draw_curves(self, result: EnvironmentResult, title: str) -> Chart:
        """Return the chart of mean curves with their intervals, and of the runs behind them."""
        lines = [
            Line(color=self.colors[group.label], x=run.env_steps, y=run.values, faint=True)
            for group in result.groups
            if 1 < len(group.runs) <= MAX_FAINT_RUNS
            for run in group.runs
        ]
        lines += [self._make_line(group.label, group.env_steps, group.mean_curve) for group in result.groups]
        level = result.goal if self.metric.partition("/")[2].startswith("return") else None
        y_range = find_robust_range(lines, level)
        note = (
            "A curve ends where the shortest run of its group ends. Thin lines are single runs. Extremes may be cut "
            "off."
        )
        if any(group.reached for group in result.groups):
            note += " Training ends at the goal; the mean then contains the last value of a run that has reached it."
        size, y_label = CURVE_SIZE, self.metric
        return draw_lines(lines, title=title, note=note, y_label=y_label, level=level, y_range=y_range, size=size)

    def draw_iqm(self, groups: Sequence[Performance], score: str) -> Chart:
        """Return the chart of interquartile means; `score` is what is compared."""
        rows = [self._make_row(group.label, group.label, group.iqm) for group in groups]
        return draw_rows(rows, title="Interquartile mean with 95% interval", note=score, width=IQM_WIDTH)

    def draw_profile(self, groups: Sequence[Performance], score: str) -> Chart:
        """Return the chart of performance profiles by `score`."""
        lines = [self._make_line(group.label, group.thresholds, group.profile) for group in groups]
        title, y_label = "Performance profile", "fraction of runs above"
        return draw_lines(lines, title=title, x_label=score, y_label=y_label, y_range=PROBABILITIES)

    def draw_improvements(self, improvements: Sequence[Improvement]) -> Chart:
        """Return the chart of probabilities of improvement, with the chance of each that has no interval."""
        rows = [self._make_row(f"{each.label} > {each.other}", each.label, each) for each in improvements]
        named = zip(rows, improvements, strict=True)
        chances = [f"{row.label} ({each.chance:.2g})" for row, each in named if each.is_complete]
        note = ""
        if chances:
            note = (
                "Where every run of a group is above every run of the other one, the bootstrap finds no interval. "
                f"Probability of such an order if both are equally good: {', '.join(chances)}."
            )
        return draw_rows(rows, title="Probability of improvement", note=note, x_range=PROBABILITIES, level=0.5)

    def _make_line(self, label: str, x: np.ndarray, each: Estimate) -> Line:
        return Line(color=self.colors[label], x=x, y=each.value, low=each.low, high=each.high, label=label)

    def _make_row(self, name: str, label: str, each: Estimate) -> Row:
        value, low, high = float(each.value), float(each.low), float(each.high)
        return Row(label=name, color=self.colors[label], value=value, low=low, high=high)
