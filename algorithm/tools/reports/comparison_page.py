"""The page of a comparison, compare.html, and its picture, compare.svg."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from algorithm.atomic_io import replace_text
from algorithm.runs.results import describe_state
from algorithm.tools.reports.charts import (
    Chart,
    LegendEntry,
    Line,
    Row,
    draw_lines,
    draw_picture,
    draw_rows,
    find_robust_range,
)
from algorithm.tools.reports.compared_runs import list_differing_settings
from algorithm.tools.reports.comparison import Comparison, EnvironmentResult, GroupResult, find_median
from algorithm.tools.reports.page import render
from algorithm.tools.reports.statistics import Estimate, Improvement, Performance
from algorithm.training.metrics import UNKNOWN

MAX_FAINT_RUNS = 20  # a group with more runs shows their mean only
CURVE_SIZE = (560.0, 320.0)  # pixels
PROBABILITIES = (0.0, 1.02)  # range of an axis
NARROW = 340.0  # pixels: width of the chart beside the curves
Colors = Mapping[str, int]  # the number of the color of each label


def write_page(comparison: Comparison, folder: Path, name: str) -> Path:
    """Write the page of a comparison as <name>.html into a folder and return its path."""
    path, colors, overall = folder / f"{name}.html", _number_labels(comparison), comparison.overall
    text = render(
        "compare.html",
        comparison=comparison,
        colors=colors,
        sections=[(result, _make_section(result, comparison.metric, colors)) for result in comparison.environments],
        overall_charts=_draw_charts(overall.groups, overall.improvements, colors, "normalized score")
        if overall
        else [],
        n_runs=sum(len(group.group.runs) for result in comparison.environments for group in result.groups.values()),
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
    return {label: number for number, label in enumerate(comparison.labels)}


def _make_section(result: EnvironmentResult, metric: str, colors: Colors) -> Mapping[str, Any]:
    """Return the charts and the settings of the section of an environment, for the template."""
    performances = {label: group.performance for label, group in result.groups.items()}
    rows = [_make_row(label, colors[label], found.iqm) for label, found in performances.items()]
    score = f"{metric} at {result.score_at:,} env steps"
    return {
        "curves": _draw_curves(result, metric, colors, f"{metric}, mean over runs with 95% interval"),
        "iqm": Chart(title="Interquartile mean with 95% interval", figure=draw_rows(rows, width=NARROW), note=score),
        "charts": _draw_charts(performances, result.improvements, colors, score),
        "settings": list_differing_settings([group.group for group in result.groups.values()]),
    }


def format_reached(result: GroupResult) -> str:
    """Return how many runs of a group reached their goal; a dash without a goal."""
    if all(run.goal is None for run in result.group.runs):
        return UNKNOWN
    return f"{result.n_reached} of {len(result.group.runs)}"


def format_median(values: Sequence[float] | None, form: str) -> str:
    """Return the median of values to the goal; a dash if it is not known."""
    middle = find_median(values)
    return UNKNOWN if middle is None else f"{middle:{form}}"


def _format_median_and_range(values: Sequence[float] | None, form: str) -> str:
    """Return the median and the range of values to the goal; a run that did not reach it is above all others."""
    middle = format_median(values, form)
    if values is None or middle == UNKNOWN:
        return UNKNOWN
    low, high = min(values), max(values)
    return f"{middle} ({low:{form}} to {f'{high:{form}}' if isfinite(high) else 'not reached'})"


def _make_legend(labels: Iterable[str], colors: Colors) -> list[LegendEntry]:
    return [LegendEntry(color=colors[label], label=label) for label in labels]


def _draw_curves(result: EnvironmentResult, metric: str, colors: Colors, title: str) -> Chart:
    """Return the chart of mean curves with their intervals, and of the runs behind them."""
    groups = result.groups.values()
    lines = [
        Line(color=colors[group.group.label], x=curve.env_steps, y=curve.values, faint=True)
        for group in groups
        if 1 < len(group.curves) <= MAX_FAINT_RUNS
        for curve in group.curves
    ]
    for group in groups:
        mean, color = group.mean_curve, colors[group.group.label]
        lines.append(Line(color=color, x=group.env_steps, y=mean.value, low=mean.low, high=mean.high))
    level = result.goal if metric.partition("/")[2].startswith("return") else None
    y_range = find_robust_range(lines, level)
    note = "A curve ends where the shortest run of its group ends. Thin lines are single runs. Extremes may be cut off."
    if any(group.n_reached for group in groups):
        note += " Training ends at the goal; the mean then contains the last value of a run that has reached it."
    return Chart(
        title=title,
        figure=draw_lines(lines, y_label=metric, level=level, y_range=y_range, size=CURVE_SIZE),
        legend=_make_legend(result.groups, colors),
        note=note,
    )


def _draw_charts(
    groups: Mapping[str, Performance],
    improvements: Sequence[Improvement],
    colors: Colors,
    score: str,
) -> list[Chart]:
    """Return the charts of performance profiles and of probabilities of improvement.

    Args:
        groups: the performance of each group, by label; empty if scores have no common scale.
        improvements: of each pair of groups.
        colors: number of the color of each label.
        score: what a score is.
    """
    charts = []
    if groups:
        lines = [
            Line(
                color=colors[label],
                x=found.thresholds,
                y=found.profile.value,
                low=found.profile.low,
                high=found.profile.high,
            )
            for label, found in groups.items()
        ]
        figure = draw_lines(lines, x_label=score, y_label="fraction of runs above", y_range=PROBABILITIES)
        charts.append(Chart(title="Performance profile", figure=figure, legend=_make_legend(groups, colors)))
    if improvements:
        rows = [
            _make_row(f"{each.label} > {each.other}", colors[each.label], each.probability) for each in improvements
        ]
        figure = draw_rows(rows, x_range=PROBABILITIES, level=0.5)
        charts.append(Chart(title="Probability of improvement", figure=figure, note=_describe_complete(improvements)))
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


def _make_row(label: str, color: int, each: Estimate) -> Row:
    return Row(label=label, color=color, value=float(each.value), low=float(each.low), high=float(each.high))
