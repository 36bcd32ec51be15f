"""The charts of a run, from its metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from algorithm.tools.reports.charts import Line, draw_lines, draw_shares, find_robust_range
from algorithm.tools.reports.page import ChartFigure, LegendEntry, mark_safe
from algorithm.tools.reports.run_metrics import RETURN_COLUMN, RunMetrics
from algorithm.training.metrics import EVALUATION_COLUMN

EPISODE_COLUMN, COUNT_COLUMN = "rollout/episode_return", "time/episodes"  # of a single episode; episodes so far
LOW_COLUMN, HIGH_COLUMN = "eval/return_low", "eval/return_high"
SHARE_PREFIX, SHARE_SUFFIX = "time/", "_fraction"
MAIN_SIZE = (640, 360)  # of the chart of returns, in pixels
GAP_NOTE = "The line is interrupted where lines of metrics.csv are damaged."
# Charts by title: the metrics in each of them.
TITLES: Mapping[str, Sequence[str]] = {
    "Episode length": ("rollout/length", "eval/length"),
    "Entropy": ("train/entropy", "train/entropy_discrete", "train/entropy_continuous"),
    "KL divergence": ("train/kl_to_average", "train/kl_to_old_policy", "train/kl_after_step"),
    "Temperature": ("train/alpha_discrete", "train/alpha_continuous"),
}
SPEED: Mapping[str, Sequence[str]] = {
    "Env steps per second": ("time/env_steps_per_second",),
    "Updates per second": ("time/updates_per_second",),
}
LABELS: Mapping[str, str] = {
    RETURN_COLUMN: "training",
    "rollout/length": "training",
    EVALUATION_COLUMN: "evaluation",
    "eval/length": "evaluation",
    "train/entropy": "policy",
    "train/entropy_discrete": "discrete actions",
    "train/entropy_continuous": "continuous actions",
    "train/alpha_discrete": "discrete actions",
    "train/alpha_continuous": "continuous actions",
    "train/kl_to_average": "to the average policy",
    "train/kl_to_old_policy": "to the policy that acted",
    "train/kl_after_step": "to the average policy, after the step",
}
UNITS: Mapping[str, str] = {"Entropy": "nats", "KL divergence": "nats", "Episode length": "steps"}
# Metrics without a chart: they are in the return's chart, in the tables, or count something since the start.
UNDRAWN = {RETURN_COLUMN, EPISODE_COLUMN, EVALUATION_COLUMN, LOW_COLUMN, HIGH_COLUMN, "eval/return_std", "time/seconds"}
UNDRAWN |= {"time/episodes", "time/updates", "time/cpu_seconds"}
ZERO_BASED = {"Episode length", "Entropy", *SPEED}


@dataclass(frozen=True, kw_only=True)
class RunFigures:
    """The charts of a run, by section.

    Attributes:
        main: returns; None if no episode has ended yet.
        learning: episode length, losses and properties of the policy.
        speed: env steps and updates per second, and shares of the time.
        further: all other metrics.
    """

    main: ChartFigure | None
    learning: Sequence[ChartFigure]
    speed: Sequence[ChartFigure]
    further: Sequence[ChartFigure]


def draw_figures(metrics: RunMetrics, goal: float | None) -> RunFigures:
    """Draw the charts of a run. `goal` is the mean return of its goal."""
    found = metrics.list_metrics()
    losses = {_make_title(name): (name,) for name in found if name.endswith("_loss")}
    drawn = {*UNDRAWN, *(name for names in (*TITLES.values(), *SPEED.values(), *losses.values()) for name in names)}
    rest = {
        _make_title(name): (name,)
        for name in found
        if name not in drawn and not name.endswith(SHARE_SUFFIX) and _varies(metrics, found[name].values())
    }
    charts = _ChartMaker(metrics)
    return RunFigures(
        main=charts.draw_returns(goal),
        learning=charts.draw({"Episode length": TITLES["Episode length"], **losses, **TITLES}),
        speed=[*charts.draw(SPEED), *charts.draw_time_shares()],
        further=charts.draw(rest),
    )


def draw_returns(metrics: RunMetrics, goal: float | None) -> ChartFigure | None:
    """Draw the chart of returns alone; None if no episode has ended yet. `goal` is the mean return of the goal."""
    return _ChartMaker(metrics).draw_returns(goal)


def compute_time_shares(metrics: RunMetrics) -> dict[str, float]:
    """Return the mean fraction of the time by phase, over all rows, the largest first; empty without rows."""
    names = _list_shares(metrics)
    if not names:
        return {}
    _, seconds, *shares = metrics.get_rows("time/seconds", *names)
    known = np.isfinite(seconds)
    widths = np.diff(seconds[known], prepend=0.0).clip(min=0)
    means = {
        _name_share(name): float(np.average(share[known], weights=widths if widths.sum() else None))
        for name, share in zip(names, shares, strict=True)
    }
    return dict(sorted(means.items(), key=lambda item: -item[1]))


class _ChartMaker:
    """A maker of charts of the same metrics, which numbers them."""

    def __init__(self, metrics: RunMetrics):
        self.metrics, self.found = metrics, metrics.list_metrics()
        self.note = GAP_NOTE if metrics.is_gap.any() else ""
        self._count = 0

    def draw(self, charts: Mapping[str, Sequence[str]]) -> list[ChartFigure]:
        """Return a chart for each title with a metric that has values."""
        figures = []
        for title, names in charts.items():
            entries = [(name, role, column) for name in names for role, column in self.found.get(name, {}).items()]
            entries = [entry for entry in entries if self.metrics.find_last(entry[2]) is not None]
            if entries:
                figures.append(self._draw_metrics(title, entries))
        return figures

    def draw_returns(self, goal: float | None) -> ChartFigure | None:
        """Return the chart of training returns, evaluations with their intervals, and the goal."""
        lines: list[Line] = []
        legend: list[LegendEntry] = []
        episodes: list[Line] = []
        for column, marked in ((RETURN_COLUMN, False), (EVALUATION_COLUMN, True)):
            for role, name in self.found.get(column, {}).items():
                if (exact := self.metrics.find_last(name)) is None:
                    continue
                color, label = len(lines), _join_label(LABELS[column], role)
                lines.append(self._make_returns(name, role, color, marked))
                episodes += [] if marked else self._find_episodes(role, color)
                legend.append(LegendEntry(color=color, label=label, column=name, exact=exact))
        if not lines:
            return None
        y_range = find_robust_range([*episodes, *lines], goal)
        svg = draw_lines(self._make_name(), [*episodes, *lines], level=goal, y_range=y_range, size=MAIN_SIZE)
        notes = [self.note]
        if episodes:
            notes.append("Small dots are single training episodes: the last one before each row of metrics.csv.")
        if y_range:
            notes.append("Some extremes are cut off.")
        if any(line.marked for line in lines):
            notes.append("Points are means over evaluation episodes, bars their 95% intervals.")
        if goal is not None:
            notes.append(f"The dashed line is the goal, {goal:,.6g}.")
        note = " ".join(filter(None, notes))
        return ChartFigure(title="Return", svg=mark_safe(svg), legend=tuple(legend), note=note)

    def _find_episodes(self, role: str, color: int) -> list[Line]:
        """Return the returns of single training episodes of a role, in the color of their mean; empty without them.

        A row before which no episode has ended repeats the return of an earlier one.
        """
        name = self.found.get(EPISODE_COLUMN, {}).get(role)
        if name is None or COUNT_COLUMN not in self.metrics.columns:
            return []
        x, y, count = self.metrics.get_rows(name, COUNT_COLUMN)
        known = np.flatnonzero(np.isfinite(y) & np.isfinite(count))
        new = known[np.diff(count[known], prepend=0) > 0]
        return [Line(label=name, color=color, x=x[new], y=y[new], marked=True, faint=True)]

    def draw_time_shares(self) -> list[ChartFigure]:
        """Return the chart of the time of each phase, if there are metrics of it."""
        shares = compute_time_shares(self.metrics)
        if not shares:
            return []
        columns = {name: f"{SHARE_PREFIX}{name}{SHARE_SUFFIX}" for name in shares}
        env_steps, *heights = self.metrics.get_rows(*columns.values())
        known = np.isfinite(heights[0])
        areas = {name: height[known].clip(min=0) for name, height in zip(columns, heights, strict=True)}
        svg = draw_shares(self._make_name(), env_steps[known], areas)
        legend = tuple(
            LegendEntry(color=color, label=name, text=f"{share:.0%}")
            for color, (name, share) in enumerate(shares.items())
        )
        return [ChartFigure(title="Shares of the time", svg=mark_safe(svg), legend=legend)]

    def _draw_metrics(self, title: str, entries: Sequence[tuple[str, str, str]]) -> ChartFigure:
        """Return the chart of columns, each with its metric and its role."""
        lines, legend = [], []
        for color, (name, role, column) in enumerate(entries):
            x, y = self.metrics.get_rows(column)
            marked = name.startswith("eval/")
            lines.append(Line(label=column, color=color, x=x, y=y, marked=marked))
            label = _join_label(LABELS.get(name, ""), role) or "last value"
            legend.append(LegendEntry(color=color, label=label, column=column, exact=self.metrics.find_last(column)))
        unit = UNITS.get(title)
        svg = draw_lines(self._make_name(), lines, from_zero=title in ZERO_BASED)
        return ChartFigure(
            title=f"{title}, in {unit}" if unit else title, svg=mark_safe(svg), legend=tuple(legend), note=self.note
        )

    def _make_returns(self, column: str, role: str, color: int, marked: bool) -> Line:
        suffix = f"/{role}" if role else ""
        bounds = [f"{name}{suffix}" for name in (LOW_COLUMN, HIGH_COLUMN)]
        if marked and all(name in self.metrics.columns for name in bounds):
            x, y, low, high = self.metrics.get_rows(column, *bounds)
            known = np.isfinite(y)
            return Line(
                label=column, color=color, x=x[known], y=y[known], low=low[known], high=high[known], marked=True
            )
        x, y = self.metrics.get_rows(column)
        return Line(label=column, color=color, x=x, y=y, marked=marked)

    def _make_name(self) -> str:
        self._count += 1
        return f"chart-{self._count}"


def _list_shares(metrics: RunMetrics) -> list[str]:
    return [name for name in metrics.columns if name.startswith(SHARE_PREFIX) and name.endswith(SHARE_SUFFIX)]


def _name_share(column: str) -> str:
    return column.removeprefix(SHARE_PREFIX).removesuffix(SHARE_SUFFIX)


def _varies(metrics: RunMetrics, columns: Iterable[str]) -> bool:
    """Return whether one of the columns has two different values."""
    known = [metrics.columns[column][np.isfinite(metrics.columns[column])] for column in columns]
    return any(len(values) and np.ptp(values) > 0 for values in known)


def _make_title(metric: str) -> str:
    """Return the title of the chart of a metric: Critic loss, for train/critic_loss."""
    text = metric.removeprefix("train/").replace("_", " ").replace("/", ": ")
    return text[:1].upper() + text[1:]


def _join_label(label: str, role: str) -> str:
    return ", ".join(filter(None, (label, role)))
