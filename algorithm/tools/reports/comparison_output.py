"""The output of a comparison: tables on the terminal, the page compare.html, the picture compare.svg, a record."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from pydantic_core import to_json

from algorithm.atomic_io import replace_text
from algorithm.errors import UserError, summarize_error
from algorithm.runs.commands import Output
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
IQM_WIDTH = 340.0  # pixels: this chart is beside the curves
# The attributes of a Comparison that are not in its record: curves, and what the page alone shows.
_UNRECORDED_RESULT: Any = {
    "groups": {"__all__": {"thresholds", "profile", "env_steps", "mean_curve"}},
    "improvements": {"__all__": {"chance"}},
}
UNRECORDED: Any = {"folder": True, "environments": {"__all__": _UNRECORDED_RESULT}, "overall": _UNRECORDED_RESULT}
Colors = Mapping[str, int]  # the number of the color of each label


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
    _print_tables(comparison, output)
    page, picture = (write(comparison, comparison.folder, name) for write in (write_page, write_picture))
    output.log(f"page:    {page.as_posix()}")
    output.log(f"picture: {picture.as_posix()}")
    return {**make_record(comparison), "page": page.as_posix(), "picture": picture.as_posix()}


def _print_tables(comparison: Comparison, output: Output) -> None:
    """Print the tables of each environment and of all together, or why their scores cannot be normalized."""
    columns = ("runs", "mean [95%]", "IQM [95%]", "goal", "env steps to goal", "CPU s to goal")
    for result in comparison.environments:
        rows = [
            (
                group.label,
                str(len(group.runs)),
                str(group.mean),
                str(group.iqm),
                format_reached(group),
                format_median(group.env_steps_to_goal, ",.0f"),
                format_median(group.cpu_seconds_to_goal, ",.1f"),
            )
            for group in result.groups
        ]
        title = f"{result.environment}: {comparison.metric} at {result.env_steps:,} env steps"
        output.print_table(("group",), columns, rows, title)
        _print_improvements(result.environment, result.improvements, output)
    if overall := comparison.overall:
        if overall.obstacle:
            output.log(f"no normalized scores over all environments: {overall.obstacle}")
        else:
            for environment, ends in overall.references.items():
                start, goal = format_number(ends["start"]), format_number(ends["goal"])
                output.log(f"normalized scores of {environment}: 0 is {start}, 1 is {goal}")
            scores = [(group.label, str(group.mean), str(group.iqm)) for group in overall.groups]
            title = "all environments: normalized scores"
            output.print_table(("group",), ("mean [95%]", "IQM [95%]"), scores, title)
        _print_improvements("all environments", overall.improvements, output)


def _print_improvements(title: str, improvements: Sequence[Improvement], output: Output) -> None:
    """Print a table with the probability of improvement of each pair of groups, if there are any."""
    rows = [(each.label, each.other, str(each)) for each in improvements]
    if rows:
        output.print_table(("a run of", "is above a run of"), ("probability [95%]",), rows, title)


def make_record(comparison: Comparison) -> dict[str, Any]:
    """Return the figures of a comparison in JSON, with null for the interval of a single run and an unknown number."""
    content = to_json(
        comparison,
        exclude=UNRECORDED,
        inf_nan_mode="null",
        fallback=lambda value: value.tolist() if isinstance(value, np.ndarray) else str(value),
    )
    return json.loads(content)


def write_page(comparison: Comparison, folder: Path, name: str) -> Path:
    """Write the page of a comparison as <name>.html into a folder and return its path."""
    path, colors, overall = folder / f"{name}.html", _number_labels(comparison), comparison.overall
    overall_charts = _draw_charts(overall.groups, overall.improvements, colors, "normalized score") if overall else []
    text = render(
        "compare.html",
        comparison=comparison,
        colors=colors,
        sections=[(result, _make_section(result, comparison.metric, colors)) for result in comparison.environments],
        overall_charts=overall_charts,
        n_runs=sum(len(group.runs) for result in comparison.environments for group in result.groups),
        format_reached=format_reached,
        format_range=_format_median_and_range,
        describe_state=describe_state,
    )
    replace_text(path, text)
    return path


def write_picture(comparison: Comparison, folder: Path, name: str) -> Path:
    """Write the mean curves of all environments as <name>.svg into a folder and return its path."""
    path, colors = folder / f"{name}.svg", _number_labels(comparison)
    charts = [_draw_curves(result, comparison.metric, colors, result.environment) for result in comparison.environments]
    replace_text(path, draw_picture(charts).to_svg_file())
    return path


def _number_labels(comparison: Comparison) -> Colors:
    labels = dict.fromkeys(group.label for result in comparison.environments for group in result.groups)
    return {label: number for number, label in enumerate(labels)}


def _make_section(result: EnvironmentResult, metric: str, colors: Colors) -> Mapping[str, Any]:
    """Return the charts and the settings of the section of an environment, for the template."""
    rows = [_make_row(group.label, colors[group.label], group.iqm) for group in result.groups]
    score = f"{metric} at {result.env_steps:,} env steps"
    return {
        "curves": _draw_curves(result, metric, colors, f"{metric}, mean over runs with 95% interval"),
        "iqm": draw_rows(rows, title="Interquartile mean with 95% interval", note=score, width=IQM_WIDTH),
        "charts": _draw_charts(result.groups, result.improvements, colors, score),
        "settings": list_differing_settings([group.runs[0] for group in result.groups]),
    }


def format_reached(result: GroupResult) -> str:
    """Return how many runs of a group reached their goal; a dash without a goal."""
    return UNKNOWN if all(run.goal is None for run in result.runs) else f"{result.reached} of {len(result.runs)}"


def format_median(values: Sequence[float] | None, form: str) -> str:
    """Return the median of values to the goal; a dash if it is unknown, or if half of the runs did not reach it."""
    if values is None or not isfinite(middle := median(values)):
        return UNKNOWN
    return f"{middle:{form}}"


def _format_median_and_range(values: Sequence[float] | None, form: str) -> str:
    """Return the median and the range of values to the goal; a run that did not reach it is above all others."""
    middle = format_median(values, form)
    if values is None or middle == UNKNOWN:
        return UNKNOWN
    low, high = min(values), max(values)
    return f"{middle} ({low:{form}} to {f'{high:{form}}' if isfinite(high) else 'not reached'})"


def _draw_curves(result: EnvironmentResult, metric: str, colors: Colors, title: str) -> Chart:
    """Return the chart of mean curves with their intervals, and of the runs behind them."""
    lines = [
        Line(color=colors[group.label], x=run.env_steps, y=run.values, faint=True)
        for group in result.groups
        if 1 < len(group.runs) <= MAX_FAINT_RUNS
        for run in group.runs
    ]
    lines += [_make_line(group.label, colors, group.env_steps, group.mean_curve) for group in result.groups]
    level = result.goal if metric.partition("/")[2].startswith("return") else None
    y_range = find_robust_range(lines, level)
    note = "A curve ends where the shortest run of its group ends. Thin lines are single runs. Extremes may be cut off."
    if any(group.reached for group in result.groups):
        note += " Training ends at the goal; the mean then contains the last value of a run that has reached it."
    return draw_lines(lines, title=title, note=note, y_label=metric, level=level, y_range=y_range, size=CURVE_SIZE)


def _draw_charts(
    groups: Sequence[Performance], improvements: Sequence[Improvement], colors: Colors, score: str
) -> list[Chart]:
    """Return the charts of performance profiles and of probabilities of improvement.

    Args:
        groups: the performance of each group; empty if scores have no common scale.
        improvements: of each pair of groups.
        colors: number of the color of each label.
        score: what a score is.
    """
    charts = []
    if groups:
        lines = [_make_line(group.label, colors, group.thresholds, group.profile) for group in groups]
        title, y_label = "Performance profile", "fraction of runs above"
        charts.append(draw_lines(lines, title=title, x_label=score, y_label=y_label, y_range=PROBABILITIES))
    if improvements:
        rows = [_make_row(f"{each.label} > {each.other}", colors[each.label], each) for each in improvements]
        title, note = "Probability of improvement", _describe_complete(improvements)
        charts.append(draw_rows(rows, title=title, note=note, x_range=PROBABILITIES, level=0.5))
    return charts


def _describe_complete(improvements: Sequence[Improvement]) -> str:
    """Return why probabilities of 1 have no interval, with the chance of each; empty if there is none."""
    chances = [f"{each.label} > {each.other} ({each.chance:.2g})" for each in improvements if each.is_complete]
    if not chances:
        return ""
    return (
        "Where every run of a group is above every run of the other one, the bootstrap finds no interval. "
        f"Probability of such an order if both are equally good: {', '.join(chances)}."
    )


def _make_line(label: str, colors: Colors, x: Any, each: Estimate) -> Line:
    return Line(color=colors[label], x=x, y=each.value, low=each.low, high=each.high, label=label)


def _make_row(label: str, color: int, each: Estimate) -> Row:
    return Row(label=label, color=color, value=float(each.value), low=float(each.low), high=float(each.high))
