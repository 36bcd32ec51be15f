"""The figures of a run: charts of its metrics, and its learning curve as a picture in its folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from algorithm.tools.reports.charts import Chart, Line, draw_lines, draw_picture, find_robust_range
from algorithm.tools.reports.run_data import RETURN_COLUMN, Log, RunMetrics, make_metrics
from algorithm.training.metrics import EVALUATION_COLUMN, TABLE_FILE, read_table

CURVE_FILE = "curve.png"
EPISODE_COLUMN, COUNT_COLUMN = "rollout/episode_return", "time/episodes"  # of a single episode; episodes so far
LOW_COLUMN, HIGH_COLUMN = "eval/return_low", "eval/return_high"
SHARE_PREFIX, SHARE_SUFFIX = "time/", "_fraction"
MAX_STEPS = 150  # of the chart of shares
MAIN_SIZE = (640.0, 360.0)  # of the chart of returns, in pixels
GAP_NOTE = "The line is interrupted where lines of metrics.csv are damaged."
Titles = Mapping[str, Mapping[str, str]]
# Charts by title: the metrics in each of them, with their names in its legend.
TITLES: Titles = {
    "Episode length": {"rollout/length": "training", "eval/length": "evaluation"},
    "Entropy": {
        "train/entropy": "policy",
        "train/entropy_discrete": "discrete actions",
        "train/entropy_continuous": "continuous actions",
    },
    "KL divergence": {
        "train/kl_to_average": "to the average policy",
        "train/kl_to_old_policy": "to the policy that acted",
        "train/kl_after_step": "to the average policy, after the step",
    },
    "Temperature": {"train/alpha_discrete": "discrete actions", "train/alpha_continuous": "continuous actions"},
}
SPEED: Titles = {
    "Env steps per second": {"time/env_steps_per_second": ""},
    "Updates per second": {"time/updates_per_second": ""},
}
UNITS: Mapping[str, str] = {"Entropy": "nats", "KL divergence": "nats", "Episode length": "steps"}
# Metrics without a chart: they are in the return's chart, in the tables, or count something since the start.
UNDRAWN = {RETURN_COLUMN, EPISODE_COLUMN, EVALUATION_COLUMN, LOW_COLUMN, HIGH_COLUMN, "eval/return_std", "time/seconds"}
UNDRAWN |= {"time/episodes", "time/updates", "time/cpu_seconds"}
ZERO_BASED = {"Episode length", "Entropy", *SPEED}


def draw_curve(folder: Path, goal: float | None, log: Log, metrics: RunMetrics | None = None) -> Path | None:
    """Draw curve.png from the metrics of a run.

    Args:
        folder: folder of the run.
        goal: mean return of the goal, drawn as a dashed line; None without a goal.
        log: receives the reason if drawing fails.
        metrics: its metrics.csv, which is slow to read; None to read it.

    Returns:
        The path of the picture; None if drawing fails.
    """
    try:
        metrics = make_metrics(read_table(folder / TABLE_FILE), {}) if metrics is None else metrics
        if not metrics.columns:
            raise ValueError(f"{TABLE_FILE} has no row that can be read")
        title = f"{folder.name}: return" + ("" if goal is None else f" (goal {goal:,.6g})")
        draw_picture([replace(draw_returns(metrics, goal), title=title)]).write_png(folder / CURVE_FILE)
    except Exception as error:  # a run does not fail because of its picture
        log(f"no {CURVE_FILE}: {type(error).__name__}: {error}")
        return None
    return folder / CURVE_FILE


def draw_figures(metrics: RunMetrics, goal: float | None) -> dict[str, list[Chart]]:
    """Draw the charts of a run by section.

    The sections are `main` (returns; empty if no episode has ended yet), `learning` (episode length, losses and
    properties of the policy), `speed` (env steps and updates per second, and shares of the time), and `further` (all
    other metrics that vary). `goal` is the mean return of its goal.
    """
    found, returns = metrics.list_metrics(), draw_returns(metrics, goal)
    losses = {_make_title(name): {name: ""} for name in found if name.endswith("_loss")}
    learning = {"Episode length": TITLES["Episode length"], **losses, **TITLES}
    drawn = {*UNDRAWN, *(name for names in (*learning.values(), *SPEED.values()) for name in names)}
    further = {
        _make_title(name): {name: ""}
        for name in found
        if name not in drawn and not name.endswith(SHARE_SUFFIX)
        if any(len(np.unique(metrics.get_known(column))) > 1 for column in found[name].values())
    }
    return {
        "main": [returns] if returns.legend else [],
        "learning": list(_draw_charts(metrics, learning)),
        "speed": [*_draw_charts(metrics, SPEED), *_draw_time_shares(metrics)],
        "further": list(_draw_charts(metrics, further)),
    }


def draw_returns(metrics: RunMetrics, goal: float | None) -> Chart:
    """Return the chart of training returns, evaluations with their intervals, and the goal."""
    lines = _make_lines(metrics, {RETURN_COLUMN: "training", EVALUATION_COLUMN: "evaluation"})
    columns = metrics.list_metrics().get(RETURN_COLUMN, {})
    roles = [role for role, column in columns.items() if len(metrics.get_known(column))]
    episodes = [line for color, role in enumerate(roles) for line in _find_episodes(metrics, role, color)]
    y_range = find_robust_range([*episodes, *lines], goal)
    notes = {
        GAP_NOTE: metrics.is_gap.any(),
        "Small dots are single training episodes: the last one before each row of metrics.csv.": episodes,
        "Some extremes are cut off.": y_range,
        "Points are means over evaluation episodes, bars their 95% intervals.": any(line.marked for line in lines),
        f"The dashed line is the goal, {goal or 0.0:,.6g}.": goal is not None,
    }
    note = " ".join(note for note, is_true in notes.items() if is_true)
    return draw_lines([*episodes, *lines], title="Return", note=note, level=goal, y_range=y_range, size=MAIN_SIZE)


def _find_episodes(metrics: RunMetrics, role: str, color: int) -> list[Line]:
    """Return the returns of single training episodes of a role, in the color of their mean; empty without them.

    A row before which no episode has ended repeats the return of an earlier one.
    """
    name = metrics.list_metrics().get(EPISODE_COLUMN, {}).get(role)
    if name is None or COUNT_COLUMN not in metrics.columns:
        return []
    x, y, count = metrics.get_rows(name, COUNT_COLUMN)
    known = np.flatnonzero(np.isfinite(y) & np.isfinite(count))
    new = known[np.diff(count[known], prepend=0) > 0]
    return [Line(color=color, x=x[new], y=y[new], marked=True, faint=True)]


def _draw_charts(metrics: RunMetrics, charts: Titles) -> Iterator[Chart]:
    """Yield a chart for each title with a metric that has values."""
    for title, names in charts.items():
        if lines := _make_lines(metrics, names):
            text = f"{title}, in {UNITS[title]}" if title in UNITS else title
            note = GAP_NOTE if metrics.is_gap.any() else ""
            yield draw_lines(lines, title=text, note=note, from_zero=title in ZERO_BASED)


def _make_lines(metrics: RunMetrics, names: Mapping[str, str]) -> list[Line]:
    """Return a line for each role of each metric that has values.

    Evaluations are points, those of returns with their intervals. `names` are the labels of the metrics.
    """
    found = metrics.list_metrics()
    lines: list[Line] = []
    for metric, role, column in [(name, *each) for name in names for each in found.get(name, {}).items()]:
        if len(metrics.get_known(column)):
            bounds = [f"{bound}/{role}" if role else bound for bound in (LOW_COLUMN, HIGH_COLUMN)]
            has_bounds = metric == EVALUATION_COLUMN and all(bound in metrics.columns for bound in bounds)
            x, y, *ends = metrics.get_rows(column, *(bounds if has_bounds else ()))
            low, high = ends or (None, None)
            label = ", ".join(filter(None, (names[metric], role))) or "last value"
            marked = metric.startswith("eval/")
            lines.append(
                Line(color=len(lines), x=x, y=y, low=low, high=high, marked=marked, label=label, column=column)
            )
    return lines


def _draw_time_shares(metrics: RunMetrics) -> list[Chart]:
    """Return the chart of the share of the time of each phase, the largest mean first, if there are metrics of it.

    The areas of the phases are stacked. Each of at most `MAX_STEPS` steps has the mean of its rows.
    """
    names = [name for name in metrics.columns if name.startswith(SHARE_PREFIX) and name.endswith(SHARE_SUFFIX)]
    rows = np.stack(metrics.get_rows("time/seconds", *names)) if names else np.empty((2, 0))
    env_steps, seconds, *shares = np.nan_to_num(rows[:, np.isfinite(rows[1])])
    n_rows = len(seconds)
    if not n_rows:
        return []
    widths = np.diff(seconds, prepend=0.0).clip(min=0)
    means = np.average(shares, axis=1, weights=widths if widths.any() else None)
    order = np.argsort(-means, kind="stable")
    starts = np.linspace(0, n_rows, min(n_rows, MAX_STEPS), endpoint=False).astype(int)
    sums = np.add.reduceat(np.array(shares)[order].clip(min=0), starts, axis=1)
    tops = np.cumsum(sums / np.diff(starts, append=n_rows), 0)
    edges = np.repeat([0.0, *env_steps[starts[1:] - 1], env_steps[-1]], 2)[1:-1]
    labels = [
        f"{names[index].removeprefix(SHARE_PREFIX).removesuffix(SHARE_SUFFIX)} {means[index]:.0%}" for index in order
    ]
    lines = [
        Line(color=color, x=edges, y=np.repeat(top, 2), low=np.repeat(bottom, 2), high=np.repeat(top, 2), label=label)
        for color, (bottom, top, label) in enumerate(zip([np.zeros(len(starts)), *tops], tops, labels, strict=False))
    ]
    return [draw_lines(lines, title="Shares of the time", y_range=(0.0, max(1.0, float(tops.max()))))]


def _make_title(metric: str) -> str:
    """Return the title of the chart of a metric: Critic loss, for train/critic_loss."""
    text = metric.removeprefix("train/").replace("_", " ").replace("/", ": ")
    return text[:1].upper() + text[1:]
