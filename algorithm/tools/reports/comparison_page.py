"""The page of a comparison, compare.html, and its picture, compare.svg."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from algorithm.atomic_io import replace_text
from algorithm.tools.reports.charts import Interval, Line, draw_intervals, draw_lines, find_robust_range
from algorithm.tools.reports.comparison import Comparison, EnvironmentResult, GroupResult, OverallResult, find_median
from algorithm.tools.reports.groups import format_value, list_differing_settings
from algorithm.tools.reports.page import ChartFigure, LegendEntry, mark_safe, render
from algorithm.tools.reports.performance import Improvement, Performance
from algorithm.tools.reports.picture import Panel, draw_picture
from algorithm.training.metrics import UNKNOWN, format_number

MAX_FAINT_RUNS = 20  # a group with more runs shows their mean only
CURVE_SIZE = (560, 320)  # pixels
PROBABILITIES = (0.0, 1.02)  # range of an axis
NARROW = 340  # pixels: width of the chart beside the curves


@dataclass(frozen=True, kw_only=True)
class GroupRow:
    """A group as a row of the table of an environment, as text; `color` is the number of its color."""

    color: int
    label: str
    runs: int
    mean: str
    iqm: str
    reached: str
    env_steps: str
    cpu_seconds: str


def write_page(comparison: Comparison, folder: Path, name: str) -> Path:
    """Write the page of a comparison as <name>.html into a folder and return its path."""
    path = folder / f"{name}.html"
    colors = {label: number for number, label in enumerate(comparison.labels)}
    sections = [
        _make_section(result, comparison.metric, colors, number)
        for number, result in enumerate(comparison.environments)
    ]
    overall = _make_overall(comparison.overall, colors) if comparison.overall else None
    n_runs = sum(len(group.group.runs) for result in comparison.environments for group in result.groups.values())
    replace_text(
        path,
        render(
            "compare.html",
            title=", ".join(result.environment for result in comparison.environments),
            metric=comparison.metric,
            n_runs=n_runs,
            sections=sections,
            overall=overall,
            notes=comparison.notes,
        ),
    )
    return path


def write_picture(comparison: Comparison, folder: Path, name: str) -> Path:
    """Write the mean curves of all environments as <name>.svg into a folder and return its path."""
    path = folder / f"{name}.svg"
    colors = {label: number for number, label in enumerate(comparison.labels)}
    panels = [
        Panel(
            title=result.environment,
            svg=_draw_curves(result, comparison.metric, colors, f"curves-{number}"),
            legend=[(colors[label], label) for label in result.groups],
        )
        for number, result in enumerate(comparison.environments)
    ]
    replace_text(path, draw_picture(panels, CURVE_SIZE))
    return path


def _make_section(result: EnvironmentResult, metric: str, colors: Mapping[str, int], number: int) -> Mapping[str, Any]:
    """Return the values of the section of an environment, for the template."""
    groups = list(result.groups.values())
    performances = {label: group.performance for label, group in result.groups.items()}
    score = f"{metric} at {result.score_at:,} env steps"
    return {
        "environment": result.environment,
        "goal": result.goal,
        "score_at": result.score_at,
        "rows": [_make_row(group, colors[group.group.label]) for group in groups],
        "curves": ChartFigure(
            title=f"{metric}, mean over runs with 95% interval",
            svg=mark_safe(_draw_curves(result, metric, colors, f"curves-{number}")),
            legend=_make_legend(result.groups, colors),
            note=_describe_curves(groups),
        ),
        "iqm": _draw_iqm(performances, colors, f"iqm-{number}", score),
        "figures": _make_figures(
            performances, result.thresholds, result.improvements, colors, f"environment-{number}", score
        ),
        "settings": _list_settings(groups),
        "runs": [run for group in groups for run in _list_runs(group)],
    }


def _make_row(result: GroupResult, color: int) -> GroupRow:
    return GroupRow(
        color=color,
        label=result.group.label,
        runs=len(result.group.runs),
        mean=str(result.performance.mean),
        iqm=str(result.performance.iqm),
        reached=format_reached(result),
        env_steps=_format_median_and_range(result.steps_to_goal, ",.0f"),
        cpu_seconds=_format_median_and_range(result.cpu_seconds_to_goal, ",.1f"),
    )


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


def _make_legend(labels: Any, colors: Mapping[str, int]) -> tuple[LegendEntry, ...]:
    return tuple(LegendEntry(color=colors[label], label=label) for label in labels)


def _draw_curves(result: EnvironmentResult, metric: str, colors: Mapping[str, int], name: str) -> str:
    """Return the chart of mean curves with their intervals, and of the runs behind them."""
    lines = []
    for label, group in result.groups.items():
        if 1 < len(group.curves) <= MAX_FAINT_RUNS:
            lines += [
                Line(label="", color=colors[label], x=curve.env_steps, y=curve.values, faint=True)
                for curve in group.curves
            ]
    for label, group in result.groups.items():
        mean = group.mean_curve
        has_interval = len(group.curves) > 1
        lines.append(
            Line(
                label=label,
                color=colors[label],
                x=group.env_steps,
                y=mean.value,
                low=mean.low if has_interval else None,
                high=mean.high if has_interval else None,
            )
        )
    level = result.goal if metric.partition("/")[2].startswith("return") else None
    y_range = find_robust_range(lines, level)
    return draw_lines(name, lines, y_label=metric, level=level, y_range=y_range, size=CURVE_SIZE)


def _describe_curves(groups: Sequence[GroupResult]) -> str:
    text = "A curve ends where the shortest run of its group ends. Thin lines are single runs. Extremes may be cut off."
    if any(group.n_reached for group in groups):
        text += " Training ends at the goal; the mean then contains the last value of a run that has reached it."
    return text


def _draw_iqm(groups: Mapping[str, Performance], colors: Mapping[str, int], name: str, score: str) -> ChartFigure:
    """Return the chart of interquartile means with their intervals."""
    rows = [_make_interval(label, colors[label], found.iqm) for label, found in groups.items()]
    return ChartFigure(
        title="Interquartile mean with 95% interval",
        svg=mark_safe(draw_intervals(name, rows, width=NARROW)),
        note=score,
    )


def _make_figures(
    groups: Mapping[str, Performance],
    thresholds: np.ndarray,
    improvements: Sequence[Improvement],
    colors: Mapping[str, int],
    name: str,
    score: str,
) -> list[ChartFigure]:
    """Return the charts of performance profiles and of probabilities of improvement.

    Args:
        groups: the performance of each group, by label; empty if scores have no common scale.
        thresholds: of the profiles.
        improvements: of each pair of groups.
        colors: number of the color of each label.
        name: name that begins those of the charts.
        score: what a score is.
    """
    figures = []
    if groups:
        lines = [
            Line(
                label=label,
                color=colors[label],
                x=thresholds,
                y=found.profile.value,
                low=found.profile.low,
                high=found.profile.high,
            )
            for label, found in groups.items()
        ]
        svg = draw_lines(
            f"{name}-profile", lines, x_label=score, y_label="fraction of runs above", y_range=PROBABILITIES
        )
        legend = _make_legend(groups, colors)
        figures.append(ChartFigure(title="Performance profile", svg=mark_safe(svg), legend=legend))
    if improvements:
        rows = [
            _make_interval(f"{each.label} > {each.other}", colors[each.label], each.probability)
            for each in improvements
        ]
        figures.append(
            ChartFigure(
                title="Probability of improvement",
                svg=mark_safe(draw_intervals(f"{name}-improvement", rows, x_range=PROBABILITIES, level=0.5)),
                note=_describe_complete(improvements),
            )
        )
    return figures


def _describe_complete(improvements: Sequence[Improvement]) -> str:
    """Return why probabilities of 1 have no interval, with the chance of each; empty if there is none."""
    chances = [f"{each.label} > {each.other} ({each.chance:.2g})" for each in improvements if each.is_complete]
    if not chances:
        return ""
    return (
        "Where every run of a group is above every run of the other one, the bootstrap finds no interval. "
        f"Probability of such an order if both are equally good: {', '.join(chances)}."
    )


def _make_interval(label: str, color: int, estimate: Any) -> Interval:
    return Interval(
        label=label, color=color, value=float(estimate.value), low=float(estimate.low), high=float(estimate.high)
    )


def _list_settings(groups: Sequence[GroupResult]) -> list[tuple[str, list[str]]]:
    """Return the settings that differ between groups, each with its value in every group."""
    paths = list_differing_settings([result.group for result in groups])
    return [(path, [format_value(result.group.runs[0].settings[path]) for result in groups]) for path in paths]


def _list_runs(result: GroupResult) -> list[tuple[str, ...]]:
    """Return folder, group, seed, state, env steps and score of each run."""
    return [
        (
            str(run),
            result.group.label,
            str(run.seed),
            run.state,
            f"{run.record['env_steps']:,}",
            format_number(float(score)),
        )
        for run, score in zip(result.group.runs, result.performance.scores[0], strict=True)
    ]


def _make_overall(overall: OverallResult, colors: Mapping[str, int]) -> Mapping[str, Any]:
    """Return the values of the section over all environments, for the template."""
    return {
        "rows": [
            {"color": colors[label], "label": label, "mean": str(found.mean), "iqm": str(found.iqm)}
            for label, found in overall.groups.items()
        ],
        "references": [
            (environment, format_number(low), format_number(goal))
            for environment, (low, goal) in overall.references.items()
        ],
        "obstacle": overall.obstacle,
        "figures": _make_figures(
            overall.groups, overall.thresholds, overall.improvements, colors, "overall", "normalized score"
        ),
    }
