"""Charts of runs as SVG text for a page: lines, stacked shares, intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from algorithm.errors import clean_text
from algorithm.tools.reports.svg import CHARACTER_WIDTH, INK, LEVEL, get_color, make_figure, style, to_svg

if TYPE_CHECKING:  # the import takes a second
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line, or points with intervals if `marked`.

    Attributes:
        label: its name in the legend, which the page writes.
        color: number of its color, from 0.
        x, y: [n]; NaN in y is a gap.
        low, high: bounds of y [n]; a band around a line, or an interval at each point. None: no bounds.
        marked: whether it has points instead of a line.
        dashed: whether the line is dashed.
        faint: whether it is thin and pale, as a single run or a single episode behind the mean of several.
    """

    label: str
    color: int
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    marked: bool = False
    dashed: bool = False
    faint: bool = False


SIZE = (480, 260)  # width and height of a chart, in pixels of the page
ROW_HEIGHT, ROW_MARGIN = 26, 64  # pixels: a row of a chart, and what it has above and below its rows
TEXT_HEIGHT, TEXT_SCALE = 14, 1.3  # pixels of a line of text; on a phone, text is larger in proportion to a chart
GOLDEN_RATIO = 0.618  # its multiples modulo 1 are evenly spread
MAX_POINTS = 600  # points of a line; a chart is about as many pixels wide


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A point with an interval, as a row of a chart.

    Attributes:
        label: text of the row.
        color: number of its color, from 0.
        value, low, high: the point and the bounds.
    """

    label: str
    color: int
    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Values [n] with their mean and its interval `low` to `high`, if it is known, as a row of a chart."""

    label: str
    color: int
    values: np.ndarray
    mean: float
    low: float | None
    high: float | None


def draw_lines(
    name: str,
    lines: Sequence[Line],
    *,
    x_label: str = "env steps",
    y_label: str = "",
    level: float | None = None,
    from_zero: bool = False,
    y_range: tuple[float, float] | None = None,
    size: tuple[float, float] = SIZE,
) -> str:
    """Return a chart of lines and points as SVG.

    Args:
        name: name of the chart, unique in its page: letters, digits and dashes.
        lines: drawn in this order. `MAX_POINTS` points of a longer line are drawn.
        x_label: text below the x axis.
        y_label: text above the y axis.
        level: height of a dashed line across the chart, such as a goal.
        from_zero: whether the y axis contains 0.
        y_range: range of the y axis; None: from the data.
        size: width and height, in pixels.
    """
    with style():
        figure, axes = make_figure(size, x_label, y_label)
        if level is not None:
            axes.axhline(level, color=LEVEL, linewidth=1.2, linestyle=(0, (5, 4)), zorder=1.5)
        for line in lines:
            (_draw_points if line.marked else _draw_line)(axes, line)
        if from_zero:
            low, high = axes.get_ylim()
            axes.set_ylim(min(0.0, low), max(0.0, high))
        if y_range:
            axes.set_ylim(*y_range)
        return to_svg(figure, name)


def draw_shares(
    name: str,
    x: np.ndarray,
    shares: Mapping[str, np.ndarray],
    *,
    x_label: str = "env steps",
    y_label: str = "",
    size: tuple[float, float] = SIZE,
) -> str:
    """Return a chart of areas that are stacked on each other, as SVG.

    Args:
        name: name of the chart, unique in its page.
        x: right end of each step [n], ascending; the first step begins at 0.
        shares: height of each area at each step [n], by its label; at least 0.
        x_label: text below the x axis.
        y_label: text above the y axis.
        size: width and height, in pixels.
    """
    edges, heights = average_groups(x, np.stack(list(shares.values())) if shares else np.zeros((0, len(x))))
    with style():
        figure, axes = make_figure(size, x_label, y_label)
        base = np.zeros(heights.shape[1])
        for index, height in enumerate(heights):
            axes.stairs(base + height, edges, baseline=base, fill=True, color=get_color(index), linewidth=0)
            base = base + height
        axes.margins(x=0)
        axes.set_ylim(0, max(1.0, float(base.max(initial=0.0))))
        return to_svg(figure, name)


def draw_intervals(
    name: str,
    intervals: Sequence[Interval],
    *,
    x_label: str = "",
    x_range: tuple[float, float] | None = None,
    level: float | None = None,
    width: float = SIZE[0],
) -> str:
    """Return a chart with a point and its interval in each row, the first at the top, as SVG.

    The label of a row is above its point, where a long one has room.

    Args:
        name: name of the chart, unique in its page.
        intervals: one for each row.
        x_label: text below the x axis.
        x_range: range of the x axis; None: from the data.
        level: x of a dashed line from top to bottom, such as 0.5 for a probability.
        width: width in pixels; the number of rows determines the height.
    """
    labels = [fill(interval.label, round(width / (TEXT_SCALE * CHARACTER_WIDTH))) for interval in intervals]
    n_lines = max((label.count("\n") + 1 for label in labels), default=1)
    with style({"axes.grid.axis": "x"}):
        figure, axes = _make_rows([""] * len(labels), ROW_HEIGHT + n_lines * TEXT_HEIGHT, x_label, width)
        for row, label in enumerate(labels):
            place: Any = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points", "va": "bottom"}
            axes.annotate(label, (0, row), xytext=(0, 8), color=INK, annotation_clip=False, **place)
        if level is not None:
            axes.axvline(level, color=LEVEL, linewidth=1.2, linestyle=(0, (5, 4)), zorder=1.5)
        for row, interval in enumerate(intervals):
            color = get_color(interval.color)
            axes.plot([interval.low, interval.high], [row, row], color=color, linewidth=5, alpha=0.35)
            axes.plot([interval.value], [row], color=color, marker="o", markersize=6, linestyle="none")
        if x_range:
            axes.set_xlim(*x_range)
        return to_svg(figure, name)


def draw_samples(name: str, samples: Sequence[Samples], *, x_label: str = "", width: float = SIZE[0]) -> str:
    """Return a chart with a row of dots for each sample, with its mean and the interval of the mean, as SVG.

    Args:
        name: name of the chart, unique in its page.
        samples: one for each row, the first at the top.
        x_label: text below the x axis.
        width: width in pixels; the number of rows determines the height.
    """
    with style({"axes.grid.axis": "x"}):
        figure, axes = _make_rows([sample.label for sample in samples], 2 * ROW_HEIGHT, x_label, width)
        for row, sample in enumerate(samples):
            color = get_color(sample.color)
            # Dots of equal values are spread over the height of the row, in a fixed order.
            spread = row + 0.5 * ((np.arange(len(sample.values)) * GOLDEN_RATIO) % 1 - 0.5)
            axes.plot(sample.values, spread, color=color, marker="o", markersize=5, alpha=0.45, linestyle="none", mew=0)
            if sample.low is not None and sample.high is not None:
                axes.plot([sample.low, sample.high], [row, row], color=INK, linewidth=2)
            axes.plot([sample.mean], [row], color=INK, marker="|", markersize=16, markeredgewidth=2)
        axes.margins(x=0.06)
        return to_svg(figure, name)


def _make_rows(labels: Sequence[str], row_height: float, x_label: str, width: float) -> tuple[Figure, Axes]:
    """Return a figure with a row for each label, from the top, and its axes."""
    labels = list(map(clean_text, labels))
    longest = max(map(len, labels), default=0)
    left = min(16 + CHARACTER_WIDTH * longest, 0.6 * width)
    figure, axes = make_figure((width, ROW_MARGIN + row_height * max(1, len(labels))), x_label, "", left)
    axes.set_yticks(range(len(labels)), labels, color=INK)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    return figure, axes


def thin(x: np.ndarray, y: np.ndarray, max_points: int = MAX_POINTS) -> tuple[np.ndarray, np.ndarray]:
    """Return a line with at most about `max_points` points that looks the same: the extremes are kept.

    The points are divided into groups of successive points; the first, the lowest, the highest and the last point of
    each group are kept, and a NaN of each group that has one, which is a gap. x, y: [n].
    """
    if len(x) <= max_points:
        return x, y
    kept: set[int] = set()
    for group in np.array_split(np.arange(len(x)), max(1, max_points // 4)):
        values = y[group]
        known = group[np.isfinite(values)]
        kept.update(group[~np.isfinite(values)][:1])
        if len(known):
            kept.update((known[0], known[-1], known[y[known].argmin()], known[y[known].argmax()]))
    indices = np.array(sorted(kept))
    return x[indices], y[indices]


def find_robust_range(lines: Sequence[Line], level: float | None) -> tuple[float, float] | None:
    """Return a range for the y axis that a few extreme values do not widen; None if there are none.

    It contains `level`, the medians of the first and of the last values, and 90% of the values, with half of their
    extent below and above.
    """
    known = [values for line in lines if len(values := line.y[np.isfinite(line.y)])]
    if not known:
        return None
    ends = [float(np.median([values[index] for values in known])) for index in (0, -1)]
    core = [*np.quantile(np.concatenate(known), [0.05, 0.95]), *ends, *([] if level is None else [level])]
    margin = 0.5 * (max(core) - min(core))
    low, high = min(core) - margin, max(core) + margin
    bounds = [bound for line in lines for bound in (line.low, line.high) if bound is not None]
    shown = np.concatenate([*known, *(bound[np.isfinite(bound)] for bound in bounds)])
    lowest, highest = shown.min(), shown.max()
    if margin == 0 or (lowest >= low and highest <= high):
        return None
    return float(max(low, lowest - 0.1 * margin)), float(min(high, highest + 0.1 * margin))


def spread_points(count: int, max_points: int = MAX_POINTS) -> np.ndarray:
    """Return the indices of at most `max_points` of `count` points, evenly spread from the first to the last one."""
    return np.unique(np.linspace(0, count - 1, min(count, max_points)).round().astype(int))


def average_groups(x: np.ndarray, heights: np.ndarray, max_steps: int = 150) -> tuple[np.ndarray, np.ndarray]:
    """Return the edges [m + 1] and mean heights [k, m] of at most `max_steps` groups of successive steps.

    Args:
        x: right end of each step [n]; the first step begins at 0.
        heights: heights of each step [k, n], which count by the width of their step.
        max_steps: largest number of groups.
    """
    if not len(x):
        return np.array([0.0, 1.0]), np.zeros((len(heights), 1))
    widths = np.maximum(np.diff(x, prepend=0.0), 1e-12)
    groups = np.array_split(np.arange(len(x)), min(max_steps, len(x)))
    means = [np.average(heights[:, group], axis=1, weights=widths[group]) for group in groups]
    return np.array([0.0, *(x[group[-1]] for group in groups)]), np.stack(means, 1)


def _draw_line(axes: Axes, line: Line) -> None:
    color = get_color(line.color)
    if line.low is not None and line.high is not None:
        axes.fill_between(line.x, line.low, line.high, color=color, alpha=0.18, linewidth=0)
    x, y = thin(line.x, line.y)
    strength: Any = {"linewidth": 0.8, "alpha": 0.35, "zorder": 2.2} if line.faint else {"zorder": 2.5}
    axes.plot(x, y, color=color, linestyle=(0, (4, 3)) if line.dashed else "solid", **strength)
    axes.margins(y=0.08)


def _draw_points(axes: Axes, line: Line) -> None:
    color, shown = get_color(line.color), spread_points(len(line.x))
    strength: Any = {"markersize": 3, "alpha": 0.3, "mew": 0} if line.faint else {"markersize": 5, "zorder": 3.5}
    axes.plot(line.x[shown], line.y[shown], color=color, linestyle="none", marker="o", **strength)
    if line.low is not None and line.high is not None:
        axes.vlines(line.x[shown], line.low[shown], line.high[shown], color=color, linewidth=1.6, zorder=3)
    axes.margins(y=0.08)
