"""Charts of runs as SVG or PNG: lines, stacked shares, intervals, samples; and pictures of charts with legends.

They consist of shapes in pixels. Colors are the names of variables in colors.css, which defines each for a light and a
dark theme. A PNG is light.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import ceil, floor, log10
from pathlib import Path as FilePath
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from algorithm.atomic_io import open_replacement
from algorithm.errors import clean_text
from algorithm.tools.reports.page import TEMPLATES, render

if TYPE_CHECKING:
    from PIL.Image import Image

N_SERIES_COLORS = 8  # series-0 to series-7; further series repeat them
FONT_SIZE = 11.0  # pixels
CHARACTER_WIDTH = 6.5  # of text of this size, on average
PNG_SCALE, SMOOTH = 1.5, 2  # pixels of a PNG for one of a page; the factor of its first drawing, which smooths edges
SIZE = (480.0, 260.0)  # width and height of a chart, in pixels of the page
# Pixels around the axes, which are the same for all charts of lines, so that charts in a column are aligned.
LEFT_MARGIN, RIGHT_MARGIN, TOP_MARGIN, BOTTOM_MARGIN, LABEL_HEIGHT = 50.0, 12.0, 8.0, 24.0, 18.0
ROW_HEIGHT, TEXT_HEIGHT = 26.0, 14.0  # of a row of a chart, and of a line of text
TEXT_SCALE = 1.3  # on a phone, text is larger in proportion to a chart
DASH, DASH_GAP = 5.0, 6.0  # of a dashed line, without its round ends
PICTURE_MARGIN, TITLE_HEIGHT, ENTRY_HEIGHT = 16.0, 28.0, 18.0
N_TICKS = 6  # the largest number of distances between the numbers of an axis
GOLDEN_RATIO = 0.618  # its multiples modulo 1 are evenly spread
MAX_POINTS = 600  # points of a line; a chart is about as many pixels wide
Range = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Path:
    """A line through points [n, 2]: interrupted at NaN, and a dot for a point between two gaps.

    Attributes:
        points: x from the left, y from the top.
        color: its color.
        width: width of the line; 0 fills the area that it encloses.
        opacity: 0 to 1.
    """

    points: np.ndarray
    color: str
    width: float = 1.0
    opacity: float = 1.0

    @property
    def outline(self) -> str:
        """The points as the data of an SVG path."""
        parts = [" ".join(map("{:g}".format, piece.round(2).ravel().tolist())) for piece in self._split()]
        return "".join(f"M{part}h0" if part.count(" ") == 1 else f"M{part}" for part in parts)

    def draw(self, image: Image, scale: float) -> None:
        """Draw it into a picture."""
        from PIL import ImageColor, ImageDraw

        canvas = ImageDraw.Draw(image)
        light, page = (np.array(ImageColor.getrgb(read_colors()[name])) for name in (self.color, "page"))
        color = tuple((self.opacity * light + (1 - self.opacity) * page).round().astype(int).tolist())
        width = self.width * scale
        for piece in self._split():
            points = [tuple(point) for point in (piece * scale).tolist()]
            if not width:
                canvas.polygon(points, color)
            elif len(points) == 1:
                canvas.circle(points[0], width / 2, color)
            else:
                canvas.line(points, color, round(width), joint="curve")

    def _split(self) -> list[np.ndarray]:
        """Return the pieces between gaps."""
        known = np.isfinite(self.points).all(1)
        pieces = np.split(self.points, np.flatnonzero(~known))
        return [piece for piece in (piece[np.isfinite(piece).all(1)] for piece in pieces) if len(piece)]


@dataclass(frozen=True, kw_only=True)
class Text:
    """A line of text: its place on the baseline, which `anchor` (start, middle, end) relates to, and its size."""

    x: float
    y: float
    text: str
    color: str = "muted"
    anchor: str = "start"
    size: float = FONT_SIZE
    is_bold: bool = False

    def draw(self, image: Image, scale: float) -> None:
        """Draw it into a picture."""
        from PIL import ImageDraw, ImageFont

        anchor = {"start": "ls", "middle": "ms", "end": "rs"}[self.anchor]
        font = ImageFont.load_default(self.size * scale)
        place = (self.x * scale, self.y * scale)
        text = " ".join(clean_text(self.text).split())  # Pillow aligns one line only
        ImageDraw.Draw(image).text(place, text, read_colors()[self.color], font, anchor)


@dataclass(kw_only=True)
class Figure:
    """A figure of shapes, and of other figures.

    Attributes:
        size: width and height, in pixels.
        shapes: what it shows; the first is at the bottom. A figure in it is cut off at its edges.
        place: left and top, in pixels, if it is part of another figure.
    """

    size: tuple[float, float]
    shapes: list[Path | Text | Figure] = field(default_factory=list)
    place: tuple[float, float] = (0.0, 0.0)

    def draw(self, image: Image, scale: float) -> None:
        """Draw it into a picture."""
        (left, top), (width, height) = self.place, self.size
        box: Any = tuple(round(scale * number) for number in (left, top, left + width, top + height))
        layer = image.crop(box)
        for shape in self.shapes:
            shape.draw(layer, scale)
        image.paste(layer, box)

    def to_svg(self) -> str:
        """Return it as an SVG element for a page."""
        return render("figure.svg", figure=self, is_file=False)

    def to_svg_file(self) -> str:
        """Return it as the text of an SVG file with the colors of both themes."""
        return render("figure.svg", figure=self, is_file=True)

    def write_png(self, path: FilePath) -> None:
        """Write it as a PNG file."""
        from PIL import Image

        width, height = (round(PNG_SCALE * length) for length in self.size)
        image = Image.new("RGB", (SMOOTH * width, SMOOTH * height), read_colors()["page"])
        self.draw(image, PNG_SCALE * SMOOTH)
        with open_replacement(path) as file:
            image.resize((width, height), Image.Resampling.LANCZOS).save(file, "PNG")


def get_color(index: int) -> str:
    """Return the color of series number `index`, from 0."""
    return f"series-{index % N_SERIES_COLORS}"


def make_box(left: float, top: float, width: float, height: float) -> np.ndarray:
    """Return the outline of a rectangle [5, 2]."""
    return np.array([(left, top), (left + width, top), (left + width, top + height), (left, top + height), (left, top)])


def make_segments(*ends: np.ndarray) -> np.ndarray:
    """Return separate lines through the ends [n, 2] of each; with one end, a dot at each of them."""
    gap = np.full_like(ends[0], np.nan)
    return np.stack([*ends, gap], 1).reshape(-1, 2)


@cache
def read_colors() -> Mapping[str, str]:
    """Return the colors of the light theme by name."""
    light, *_ = (TEMPLATES / "colors.css").read_text(encoding="utf-8").partition("@media")
    return dict(re.findall(r"--([\w-]+): (#\w+)", light))


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line, or points with intervals if `marked`.

    Attributes:
        color: number of its color, from 0.
        x, y: [n]; NaN in y is a gap.
        low, high: bounds of y [n]; a band around a line, or an interval at each point. None: no bounds.
        marked: whether it has points instead of a line.
        faint: whether it is thin and pale, as a single run or a single episode behind the mean of several.
        label: its name in the legend, which has no entry for a line without a name.
        column: the column of metrics.csv that it shows, whose last value is in the legend.
    """

    color: int
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    marked: bool = False
    faint: bool = False
    label: str = ""
    column: str = ""

    @property
    def last(self) -> float:
        """The last value that is not a gap."""
        return float(self.y[np.isfinite(self.y)][-1])


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A figure with its title, the lines in its legend, and a note below it."""

    title: str
    figure: Figure
    legend: Sequence[Line] = ()
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a chart: a point with an interval, if its bounds are known, and the values [n] whose mean it is."""

    label: str
    color: int
    value: float
    low: float | None
    high: float | None
    values: np.ndarray | None = None


class Plot:
    """The axes of a figure, with numbers and a grid, and the area between them, whose coordinates are those of data.

    Args:
        size: width and height of the figure, in pixels.
        x_range, y_range: values at the ends of the axes.
        left: pixels left of the axes.
        grid: the axis with numbers and lines across the plot, besides the numbers of x.
    """

    def __init__(self, size: Range, x_range: Range, y_range: Range, x_label: str, y_label: str, left: float, grid: str):
        bottom, top = BOTTOM_MARGIN + LABEL_HEIGHT * bool(x_label), TOP_MARGIN + LABEL_HEIGHT * bool(y_label)
        width, height = size[0] - left - RIGHT_MARGIN, size[1] - bottom - top
        self.figure, self.x_range, self.y_range = Figure(size=size), x_range, y_range
        self.area = Figure(size=(width, height), place=(left, top))
        for value in compute_ticks(*x_range):
            (x, _), end = self.locate(value, 0.0)[0], top + height
            self.figure.shapes.append(Text(x=left + x, y=end + 17, text=format_tick(value), anchor="middle"))
            mark = [(left + x, end), (left + x, end + 4)]
            self.figure.shapes.append(Path(points=np.array(mark), color="grid"))
            if grid == "x":
                self.area.shapes.append(Path(points=np.array([(x, 0), (x, height)]), color="grid"))
        for value in compute_ticks(*y_range) if grid == "y" else ():
            _, y = self.locate(0.0, value)[0]
            self.figure.shapes.append(Text(x=left - 6, y=top + y + 4, text=format_tick(value), anchor="end"))
            self.area.shapes.append(Path(points=np.array([(0, y), (width, y)]), color="grid"))
        axis = [(left, top + height), (left + width, top + height)]
        self.figure.shapes += [
            Path(points=np.array(axis), color="grid"),
            Text(x=left + width / 2, y=size[1] - 6, text=x_label, anchor="middle"),
            Text(x=left, y=14, text=y_label),
            self.area,
        ]

    def locate(self, x: Any, y: Any) -> np.ndarray:
        """Return the pixels [n, 2] of points in the area."""
        (left, right), (low, high), (width, height) = self.x_range, self.y_range, self.area.size
        x, y = np.broadcast_arrays(np.atleast_1d(x).astype(float), y)
        return np.stack([(x - left) / (right - left) * width, (high - y) / (high - low) * height], 1)

    def draw(self, points: np.ndarray, color: str, width: float = 1.6, **style: Any) -> None:
        """Draw a line of pixels as a `Path` does."""
        self.area.shapes.append(Path(points=points, color=color, width=width, **style))

    def draw_level(self, x: Any, y: Any) -> None:
        """Draw a dashed line between two points, parallel to an axis."""
        first, last = self.locate(x, y)
        begins = np.arange(0, length := np.abs(last - first).max(), DASH + DASH_GAP)
        ends = np.minimum([begins, begins + DASH], length) / length
        self.draw(make_segments(*(first + share[:, None] * (last - first) for share in ends)), "level", 1.2)


def draw_lines(
    lines: Sequence[Line],
    *,
    title: str = "",
    note: str = "",
    x_label: str = "env steps",
    y_label: str = "",
    level: float | None = None,
    from_zero: bool = False,
    y_range: Range | None = None,
    size: Range = SIZE,
) -> Chart:
    """Return a chart of lines and points, drawn in this order, with at most `MAX_POINTS` points of each.

    The y axis shows `y_range`; by default the range of the data, with 0 if `from_zero`. `level` is the height of a
    dashed line, such as a goal. The note is below the chart, whose size is in pixels.
    """
    x_range = find_range([line.x for line in lines], 0.01)
    heights = [values for line in lines for values in (line.y, line.low, line.high) if values is not None]
    if y_range is None:
        low, high = find_range([*heights, np.array([] if level is None else [level])], 0.08)
        y_range = (min(0.0, low), max(0.0, high)) if from_zero else (low, high)
    plot = Plot(size, x_range, y_range, x_label, y_label, LEFT_MARGIN, "y")
    if level is not None:
        plot.draw_level(x_range, level)
    for line in lines:
        _draw_line(plot, line)
    return Chart(title=title, figure=plot.figure, legend=[line for line in lines if line.label], note=note)


def _draw_line(plot: Plot, line: Line) -> None:
    color, shown = get_color(line.color), thin(line.y)
    x, y = line.x[shown], line.y[shown]
    if line.low is not None and line.high is not None:
        low, high = plot.locate(line.x, line.low), plot.locate(line.x, line.high)
        if line.marked:
            plot.draw(make_segments(low[shown], high[shown]), color)
        else:
            known = np.isfinite(low + high).all(1)
            for piece in np.split(np.arange(len(known)), np.flatnonzero(~known)):
                inside = piece[known[piece]]
                plot.draw(np.concatenate([low[inside], high[inside[::-1]]]), color, 0, opacity=0.18)
    if line.marked:
        style = {"width": 3.0, "opacity": 0.3} if line.faint else {"width": 5.0}
        plot.draw(make_segments(plot.locate(x, y)), color, **style)
    else:
        style = {"width": 0.8, "opacity": 0.35} if line.faint else {}
        plot.draw(plot.locate(x, y), color, **style)


def draw_rows(
    rows: Sequence[Row],
    *,
    title: str = "",
    note: str = "",
    x_label: str = "",
    x_range: Range | None = None,
    level: float | None = None,
    width: float = SIZE[0],
) -> Chart:
    """Return a chart with the values of each row as dots, and their mean with its interval, the first row at the top.

    The label of a row is above its point, where a long one has room.

    The x axis shows `x_range`, by default that of the data; `level` is the x of a dashed line, such as 0.5 for a
    probability. The note is below the chart, whose width is in pixels; the number of rows determines its height.
    """
    labels = [wrap(row.label, round(width / (TEXT_SCALE * CHARACTER_WIDTH))) for row in rows]
    values = [row.values for row in rows if row.values is not None]
    numbers = [*values, *(np.array([row.value, row.low, row.high], float) for row in rows)]
    half = ROW_HEIGHT if values else ROW_HEIGHT / 2  # of the part of a row below its label
    height = TEXT_HEIGHT * max(map(len, labels), default=0) + 2 * half
    total = height * max(1, len(rows))
    size = (width, total + TOP_MARGIN + BOTTOM_MARGIN + LABEL_HEIGHT * bool(x_label))
    plot = Plot(size, x_range or find_range(numbers, 0.06), (total, 0.0), x_label, "", PICTURE_MARGIN, "x")
    if level is not None:
        plot.draw_level(level, [0.0, total])
    for number, (row, lines) in enumerate(zip(rows, labels, strict=True)):
        for index, text in enumerate(lines, 1):
            plot.area.shapes.append(Text(x=0, y=height * number + TEXT_HEIGHT * index - 2, text=text, color="ink"))
        color, y = get_color(row.color), height * (number + 1) - half
        if row.values is not None:
            # Dots of equal values are spread over the height of the row, in a fixed order.
            spread = half * ((np.arange(len(row.values)) * GOLDEN_RATIO) % 1 - 0.5)
            plot.draw(make_segments(plot.locate(row.values, y + spread)), color, 5, opacity=0.45)
            color = "ink"
        plot.draw(plot.locate([row.low, row.high], y), color, 5, opacity=0.35)
        plot.draw(plot.locate(row.value, y), color, 6)
    return Chart(title=title, figure=plot.figure, note=note)


def draw_picture(charts: Sequence[Chart]) -> Figure:
    """Return a figure for a file of its own: charts below each other with their titles and legends."""
    picture, y = Figure(size=(0.0, 0.0)), PICTURE_MARGIN
    for chart in charts:
        title = Text(x=PICTURE_MARGIN, y=y + 16, text=chart.title, color="ink", size=15, is_bold=True)
        picture.shapes.append(title)
        y += TITLE_HEIGHT
        for line in chart.legend:
            swatch = make_box(PICTURE_MARGIN, y, 11, 11)
            picture.shapes += [
                Path(points=swatch, color=get_color(line.color), width=0),
                Text(x=PICTURE_MARGIN + 18, y=y + 10, text=line.label, size=12),
            ]
            y += ENTRY_HEIGHT
        width, height = chart.figure.size
        picture.shapes.append(Figure(size=(width, height), shapes=chart.figure.shapes, place=(PICTURE_MARGIN, y)))
        y += height + PICTURE_MARGIN
        picture.size = (max(picture.size[0], width + 2 * PICTURE_MARGIN), y)
    return picture


def find_range(arrays: Sequence[np.ndarray], margin: float) -> Range:
    """Return the range of finite values with a margin, as a fraction of it; around equal values; 0 to 1 for none."""
    values = np.concatenate([np.empty(0), *arrays])
    values = values[np.isfinite(values)]
    if not len(values):
        return 0.0, 1.0
    low, high = float(values.min()), float(values.max())
    extent = margin * (high - low) if high > low else max(0.05 * abs(low), 0.5)
    return low - extent, high + extent


def compute_ticks(low: float, high: float) -> list[float]:
    """Return round numbers in a range: at most `N_TICKS` distances of 1, 2, 2.5 or 5 times a power of ten."""
    low, high = min(low, high), max(low, high)
    power = 10.0 ** floor(log10((high - low) / N_TICKS))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10, 20) if (high - low) / (power * factor) <= N_TICKS)
    return [number * step for number in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]


def format_tick(value: float) -> str:
    """Return a number of an axis as a short text: 0.05, 1.5k, 20M."""
    for unit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.6g}{suffix}"
    return f"{value:.6g}"


def thin(y: np.ndarray, max_points: int = MAX_POINTS) -> np.ndarray:
    """Return the indices of at most about `max_points` values of y [n], with which a line looks the same.

    The values are divided into groups of successive ones; the first, the lowest, the highest and the last value of each
    group are kept, and a NaN of each group that has one, which is a gap.
    """
    if len(y) <= max_points:
        return np.arange(len(y))
    kept: set[int] = set()
    for group in np.array_split(np.arange(len(y)), max(1, max_points // 4)):
        known = group[np.isfinite(y[group])]
        kept.update(group[~np.isfinite(y[group])][:1])
        if len(known):
            kept.update((known[0], known[-1], known[y[known].argmin()], known[y[known].argmax()]))
    return np.array(sorted(kept))


def find_robust_range(lines: Sequence[Line], level: float | None) -> Range | None:
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
