"""Figures of shapes in pixels, as SVG for a page or a file of its own, or as PNG.

Colors are the names of variables in style.css, which defines each for a light and a dark theme. A PNG is light.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import numpy as np

from algorithm.atomic_io import open_replacement
from algorithm.errors import clean_text
from algorithm.tools.reports.page import TEMPLATES, render

if TYPE_CHECKING:
    from PIL.Image import Image

N_SERIES_COLORS = 8  # series-0 to series-7; further series repeat them
FONT = 'system-ui, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", Arial, sans-serif'
FONT_SIZE = 11.0  # pixels
CHARACTER_WIDTH = 6.5  # of text of this size, on average
PNG_SCALE, SMOOTH = 1.5, 2  # pixels of a PNG for one of a page; the factor of its first drawing, which smooths edges


@dataclass(frozen=True, kw_only=True)
class Path:
    """A line through points [n, 2]: interrupted at NaN, and a dot for a point between two gaps.

    Attributes:
        points: x from the left, y from the top.
        color: its color.
        width: width of the line; 0 fills the area that it encloses.
        dash: lengths of dashes and of the gaps between them.
        opacity: 0 to 1.
    """

    points: np.ndarray
    color: str
    width: float = 1.0
    dash: tuple[float, float] | None = None
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
            elif self.dash:
                for dash in _cut_dashes(piece, *self.dash):
                    canvas.line([tuple(point) for point in (dash * scale).tolist()], color, round(width))
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
        return render("figure.svg", figure=self, themes="")

    def to_svg_file(self) -> str:
        """Return it as the text of an SVG file with the colors of both themes."""
        return render("figure.svg", figure=self, themes=_read_themes(), font=FONT)

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
    return dict(re.findall(r"--([\w-]+): (#\w+)", _read_themes().partition("@media")[0]))


@cache
def _read_themes() -> str:
    """Return the part of the page's style that defines the colors of both themes."""
    style = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    light, dark = re.findall(r":root \{.*?\}", style, re.DOTALL)
    return f"{light}\n@media (prefers-color-scheme: dark) {{ {dark} }}"


def _cut_dashes(piece: np.ndarray, dash: float, gap: float) -> Sequence[Any]:
    """Return the dashes [2, 2] of a straight line between the ends of a piece."""
    start, vector = piece[0], piece[-1] - piece[0]
    begins = np.arange(0, length := float(np.hypot(*vector)), dash + gap)
    return [start + vector * np.array([[at], [min(at + dash, length)]]) / length for at in begins]
