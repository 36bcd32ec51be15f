"""Figures as SVG text for a page: one style, colors that follow the page's theme, and text that stays text.

Colors are CSS variables of the page, so that one figure fits a light and a dark page. Matplotlib, which draws the
figures, accepts no variables: every color has a placeholder, which is replaced in the text of the SVG.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the import takes a second
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

N_SERIES_COLORS = 8  # --series-0 to --series-7; further series repeat them
INK, MUTED, GRID, LEVEL, PANEL = "#0a0001", "#0a0002", "#0a0003", "#0a0004", "#0a0005"
COLOR_VARIABLES: Mapping[str, str] = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--grid",
    LEVEL: "--level",
    PANEL: "--panel",
    **{f"#0b00{index:02x}": f"--series-{index}" for index in range(N_SERIES_COLORS)},
}
DPI = 72.0  # at which a point of matplotlib is a pixel of the page
FONT_SIZE = 11.0  # pixels
# Pixels around the axes; the height of a label counts for each label that a figure has.
LEFT_MARGIN, RIGHT_MARGIN, BOTTOM_MARGIN, LABEL_HEIGHT = 50.0, 12.0, 40.0, 18.0
CHARACTER_WIDTH = 6.5  # of text of this size, on average
STYLE: Mapping[str, Any] = {
    "svg.fonttype": "none",
    "path.simplify": False,
    "font.family": "DejaVu Sans",  # for the layout; the page selects the font
    "font.size": FONT_SIZE,
    "text.color": INK,
    "text.parse_math": False,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.labelsize": FONT_SIZE,
    "axes.linewidth": 1.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "axes.xmargin": 0.01,
    "grid.color": GRID,
    "grid.linewidth": 1.0,
    "xtick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.color": GRID,
    "ytick.labelcolor": MUTED,
    "ytick.major.size": 0.0,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
    "lines.solid_joinstyle": "round",
}


def get_color(index: int) -> str:
    """Return the placeholder of the color of series number `index`, from 0."""
    return f"#0b00{index % N_SERIES_COLORS:02x}"


def style(changes: Mapping[str, Any] | None = None) -> Any:
    """Return a context in which matplotlib has the style of all figures, with `changes`."""
    from matplotlib import rc_context

    parameters: Any = {**STYLE, **(changes or {})}
    return rc_context(parameters)


def make_figure(
    size: tuple[float, float], x_label: str, y_label: str, left: float = LEFT_MARGIN
) -> tuple[Figure, Axes]:
    """Return a figure in the style of all charts, and its axes; within `style`.

    Margins are fixed: charts in a column of a page are aligned, and matplotlib lays text out only once.

    Args:
        size: width and height, in pixels.
        x_label: text below the x axis.
        y_label: text above the y axis.
        left: width of the labels of the y axis, in pixels.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    width, height = size
    bottom, top = BOTTOM_MARGIN if x_label else BOTTOM_MARGIN - LABEL_HEIGHT, LABEL_HEIGHT + 8 if y_label else 8
    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
    axes = figure.add_axes(
        (left / width, bottom / height, (width - left - RIGHT_MARGIN) / width, (height - bottom - top) / height)
    )
    for patch in (figure.patch, axes.patch):  # the page has a background
        patch.set_visible(False)
    axes.set_xlabel(x_label)
    axes.set_title(y_label, loc="left", fontsize=FONT_SIZE, color=MUTED)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(_format_tick))
    return figure, axes


def _format_tick(value: float, _: object = None) -> str:
    """Return a number of an axis as a short text: 0.05, 1.5k, 20M."""
    for unit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.6g}{suffix}".replace("-", "\N{MINUS SIGN}")
    return f"{0.0 if abs(value) < 1e-12 else value:.6g}".replace("-", "\N{MINUS SIGN}")


def to_svg(figure: Figure, name: str) -> str:
    """Return a figure as an SVG element for a page, with CSS variables as colors.

    Args:
        figure: the figure.
        name: name of the chart, which is unique in its page and begins every id in the element.
    """
    from matplotlib import rc_context

    file = io.StringIO()
    nothing: Any = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure.savefig(file, format="svg", metadata=nothing)
    text = file.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text[text.index("<svg") :], flags=re.S)
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', text))
    text = re.sub(r' id="([^"]*)"', lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", text)
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", text)
    text = re.sub(r"font-family: [^;\"]*;? ?", "", text)
    text = re.sub("#0[ab]00[0-9a-f]{2}", lambda found: f"var({COLOR_VARIABLES[found[0]]})", text)
    width, height = (round(float(inches) * DPI) for inches in figure.get_size_inches())
    head = f'<svg class="chart" role="img" viewBox="0 0 {width} {height}" xmlns:xlink="http://www.w3.org/1999/xlink">'
    return head + re.sub(r"\s*\n\s*", "\n", text[text.index(">") + 1 :]).strip()
