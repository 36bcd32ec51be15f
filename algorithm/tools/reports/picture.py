"""Charts of a page as one picture in a file of its own, with the page's colors for light and dark."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from algorithm.tools.reports.page import TEMPLATES

MARGIN, TITLE_HEIGHT, ENTRY_HEIGHT = 16, 28, 18  # pixels
FONT = 'system-ui, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", Arial, sans-serif'


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A chart with a title and a legend.

    Attributes:
        title: text above it.
        svg: the SVG element of the chart.
        legend: number of the color and label of each line.
    """

    title: str
    svg: str
    legend: Sequence[tuple[int, str]]


def draw_picture(panels: Sequence[Panel], size: tuple[float, float]) -> str:
    """Return an SVG file with panels below each other.

    Args:
        panels: the panels.
        size: width and height of every chart, in pixels.
    """
    from algorithm.tools.reports.svg import N_SERIES_COLORS

    width, height = size
    parts, y = [], float(MARGIN)
    for panel in panels:
        parts.append(f'<text class="title" x="{MARGIN}" y="{y + 16:g}">{escape(panel.title)}</text>')
        y += TITLE_HEIGHT
        for color, label in panel.legend:
            parts.append(
                f'<rect x="{MARGIN}" y="{y:g}" width="11" height="11" rx="2" '
                f'fill="var(--series-{color % N_SERIES_COLORS})"/>'
                f'<text class="label" x="{MARGIN + 18}" y="{y + 10:g}">{escape(label)}</text>'
            )
            y += ENTRY_HEIGHT
        place = f'<svg x="{MARGIN}" y="{y:g}" width="{width:g}" height="{height:g}" '
        parts.append(panel.svg.replace("<svg ", place, 1))
        y += height + MARGIN
    full_width = width + 2 * MARGIN
    return "\n".join(
        [
            '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
            f'width="{full_width:g}" height="{y:g}" viewBox="0 0 {full_width:g} {y:g}">',
            f"<style>{_read_colors()}\ntext {{ font-family: {FONT}; }}\n.title {{ font-size: 15px; font-weight: 600; "
            "fill: var(--ink); }\n.label { font-size: 12px; fill: var(--muted); }</style>",
            f'<rect width="{full_width:g}" height="{y:g}" fill="var(--page)"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def _read_colors() -> str:
    """Return the part of the page's style that defines the colors of both themes."""
    style = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    light, dark = re.findall(r":root \{.*?\}", style, re.DOTALL)
    return f"{light}\n@media (prefers-color-scheme: dark) {{ {dark} }}"
