"""The learning curve of a run, as a picture in its folder: a chart of lines and points with intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from algorithm.atomic_io import open_replacement
from algorithm.training.metrics import EVALUATION_COLUMN, TABLE_FILE, read_table

if TYPE_CHECKING:
    from PIL.Image import Image

CURVE_FILE = "curve.png"
TRAINING_COLUMN, LOW_COLUMN, HIGH_COLUMN = "rollout/return", "eval/return_low", "eval/return_high"
ColumnArrays = Mapping[str, np.ndarray]

WIDTH, HEIGHT = 960, 540  # pixels
LEFT, RIGHT, TOP, BOTTOM = 84, 24, 40, 58  # margins around the axes, without the legend
ROW = 22  # height of a row of the legend, in pixels
SMOOTH = 2  # factor by which the picture is drawn larger and then scaled down, which smooths its edges
COLORS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b")
INK, GRID, LEVEL = "#333333", "#e2e2e2", "#777777"
TICKS = 7  # maximum number of ticks of an axis


@dataclass(frozen=True, kw_only=True)
class Series:
    """A line, or points with intervals if `low` and `high` are set. x, y, low, high: [n], finite."""

    label: str
    color: str
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None


def draw_curve(
    folder: Path, goal: float | None, log: Callable[[str], None], columns: ColumnArrays | None = None
) -> Path | None:
    """Draw curve.png from the metrics of a run.

    Args:
        folder: Folder of the run.
        goal: Mean return of the goal, drawn as a dashed line; None without a goal.
        log: Function that receives the reason if drawing fails.
        columns: The columns of its metrics.csv, which is slow to read; None to read it.

    Returns:
        The path of the picture; None if drawing fails.
    """
    try:
        columns = read_columns(folder / TABLE_FILE) if columns is None else columns
        series = [
            one
            for number, role in enumerate(_find_role_suffixes(columns))
            for one in _make_series(columns, role, number)
        ]
        draw_chart(folder / CURVE_FILE, folder.name, ("env steps", "return"), series, goal)
    except Exception as error:  # a run does not fail because of its picture
        log(f"no {CURVE_FILE}: {type(error).__name__}: {error}")
        return None
    return folder / CURVE_FILE


def read_columns(table: Path) -> ColumnArrays:
    """Return the numbers of a CSV table by column; NaN for empty cells. Raises ValueError for a table without a row."""
    content = read_table(table)
    if not content.rows:
        raise ValueError(f"{table.name} has no row that can be read")
    return {name: np.array([float(row[name] or "nan") for row in content.rows]) for name in content.columns}


def _find_role_suffixes(columns: ColumnArrays) -> list[str]:
    """Return the suffix of the columns of each role: empty, or / and the name of the role."""
    found = [
        name.removeprefix(start)
        for start in (TRAINING_COLUMN, EVALUATION_COLUMN)
        for name in columns
        if name.startswith(start)
    ]
    return list(dict.fromkeys(rest for rest in found if not rest or rest.startswith("/")))


def _make_series(columns: ColumnArrays, role: str, number: int) -> Iterator[Series]:
    """Yield the training returns of a role as a line, and its evaluations as points with intervals."""
    env_steps, suffix = columns["env_steps"], f" of {role[1:]}" if role else ""
    line, points = COLORS[2 * number % len(COLORS)], COLORS[(2 * number + 1) % len(COLORS)]
    if TRAINING_COLUMN + role in columns:
        x, y = _drop_unknown(env_steps, columns[TRAINING_COLUMN + role])
        yield Series(label=f"training{suffix}", color=line, x=x, y=y)
    if EVALUATION_COLUMN + role in columns:
        x, y, low, high = _drop_unknown(
            env_steps, *(columns[name + role] for name in (EVALUATION_COLUMN, LOW_COLUMN, HIGH_COLUMN))
        )
        yield Series(label=f"evaluation{suffix}, 95% interval", color=points, x=x, y=y, low=low, high=high)


def _drop_unknown(*columns: np.ndarray) -> list[np.ndarray]:
    """Return the rows in which every column has a number."""
    is_known = np.isfinite(columns).all(0)
    return [column[is_known] for column in columns]


def draw_chart(path: Path, title: str, axes: tuple[str, str], series: Sequence[Series], level: float | None) -> None:
    """Draw `series`, and a dashed `level` if it is set, and save the picture.

    Args:
        path: PNG file.
        title: Text above the chart.
        axes: Names of the x and y axis.
        series: Lines and points, in the order in which they are drawn.
        level: Height of the dashed line, called goal in the legend.
    """
    from PIL import Image

    image = Image.new("RGB", (WIDTH * SMOOTH, HEIGHT * SMOOTH), "white")
    canvas = _Canvas(image)
    entries = [(one.label, one.color) for one in series] + [("goal", LEVEL)] * (level is not None)
    below_legend = _draw_legend(canvas, entries)
    x_range, y_range = compute_ranges(series, level)
    plot = _Plot(canvas, below_legend, x_range, y_range)
    plot.draw_axes()
    canvas.text(WIDTH / 2, TOP / 2, title, "mm", 16)
    canvas.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 16, axes[0], "mm")
    canvas.text(LEFT, below_legend - 8, axes[1], "mb")
    if level is not None:
        plot.draw_level(level)
    for one in series:
        plot.draw(one)
    with open_replacement(path) as file:
        image.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS).save(file, "PNG")


def compute_ranges(series: Sequence[Series], level: float | None) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the ranges of x and y that contain all series and the level, y with a margin; 0 to 1 without any."""
    heights = [values for one in series for values in (one.y, one.low, one.high) if values is not None]
    y = np.concatenate([*heights, [] if level is None else [level]])
    x = np.concatenate([one.x for one in series] or [np.empty(0)])
    x_range = (min(0.0, float(x.min())), float(x.max())) if len(x) else (0.0, 1.0)
    low, high = (float(y.min()), float(y.max())) if len(y) else (0.0, 1.0)
    margin = 0.05 * (high - low) or 0.5
    return (x_range[0], x_range[1] if x_range[1] > x_range[0] else x_range[0] + 1), (low - margin, high + margin)


def compute_ticks(low: float, high: float) -> np.ndarray:
    """Return at most `TICKS` round numbers from `low` to `high`, at distances of 1, 2 or 5 times a power of ten."""
    power = 10 ** math.floor(math.log10((high - low) / TICKS))
    step = next(power * factor for factor in (1, 2, 5, 10, 20) if (high - low) / (power * factor) <= TICKS - 1)
    return np.arange(math.ceil(low / step), math.floor(high / step) + 1) * step


class _Canvas:
    """A canvas whose coordinates are pixels of the saved picture."""

    def __init__(self, image: Image):
        from PIL import ImageDraw

        self.draw = ImageDraw.Draw(image)

    def line(self, points: Sequence[tuple[float, float]], color: str, width: float = 1) -> None:
        scaled = [(x * SMOOTH, y * SMOOTH) for x, y in points]
        self.draw.line(scaled, color, round(width * SMOOTH), joint="curve")

    def dot(self, x: float, y: float, radius: float, color: str) -> None:
        self.draw.circle((x * SMOOTH, y * SMOOTH), radius * SMOOTH, color)

    def text(self, x: float, y: float, text: str, anchor: str, size: int = 13) -> float:
        """Draw text and return its width."""
        from PIL import ImageFont

        font = ImageFont.load_default(size * SMOOTH)
        self.draw.text((x * SMOOTH, y * SMOOTH), text, INK, font, anchor)
        return font.getlength(text) / SMOOTH


def _draw_legend(canvas: _Canvas, entries: Sequence[tuple[str, str]]) -> float:
    """Draw a mark and a name for each entry, from left to right, and return the height at which the axes begin."""
    x, y = float(LEFT), float(TOP + ROW / 2)
    for label, color in entries:
        if x > LEFT and x + 40 + 7 * len(label) > WIDTH - RIGHT:
            x, y = LEFT, y + ROW
        canvas.line([(x, y), (x + 20, y)], color, 3)
        x += 20 + 8 + canvas.text(x + 28, y, label, "lm") + 24
    return y + ROW / 2 + 24


class _Plot:
    """The area between the axes, whose coordinates are in the units of the data."""

    def __init__(self, canvas: _Canvas, top: float, x_range: tuple[float, float], y_range: tuple[float, float]):
        self.canvas, self.top = canvas, top
        self.x_range, self.y_range = x_range, y_range

    def to_pixel(self, x: float, y: float) -> tuple[float, float]:
        """Return the pixel of a point."""
        across = (x - self.x_range[0]) / (self.x_range[1] - self.x_range[0])
        up = (y - self.y_range[0]) / (self.y_range[1] - self.y_range[0])
        return LEFT + across * (WIDTH - RIGHT - LEFT), HEIGHT - BOTTOM - up * (HEIGHT - BOTTOM - self.top)

    def draw_axes(self) -> None:
        """Draw the grid with its numbers, and the frame around it."""
        left, bottom = self.to_pixel(self.x_range[0], self.y_range[0])
        right, top = self.to_pixel(self.x_range[1], self.y_range[1])
        for value in compute_ticks(*self.x_range):
            x, _ = self.to_pixel(value, 0)
            self.canvas.line([(x, bottom), (x, top)], GRID)
            self.canvas.text(x, bottom + 8, f"{value:,.12g}", "mt")
        for value in compute_ticks(*self.y_range):
            _, y = self.to_pixel(0, value)
            self.canvas.line([(left, y), (right, y)], GRID)
            self.canvas.text(left - 8, y, f"{value:,.12g}", "rm")
        self.canvas.line([(left, top), (left, bottom), (right, bottom), (right, top), (left, top)], INK)

    def draw_level(self, level: float) -> None:
        """Draw a dashed line across the plot."""
        left, y = self.to_pixel(self.x_range[0], level)
        for x in range(round(left), WIDTH - RIGHT, 12):
            self.canvas.line([(x, y), (min(x + 7, WIDTH - RIGHT), y)], LEVEL, 1.5)

    def draw(self, series: Series) -> None:
        """Draw a line, or points with their intervals."""
        points = [self.to_pixel(x, y) for x, y in zip(series.x, series.y, strict=True)]
        if series.low is None or series.high is None:
            self.canvas.line(points, series.color, 2)
            return
        for x, y, low, high in zip(series.x, series.y, series.low, series.high, strict=True):
            (across, down), (_, up) = self.to_pixel(x, low), self.to_pixel(x, high)
            self.canvas.line([(across, down), (across, up)], series.color, 1.5)
            for end in (down, up):
                self.canvas.line([(across - 4, end), (across + 4, end)], series.color, 1.5)
            self.canvas.dot(*self.to_pixel(x, y), 4, series.color)
