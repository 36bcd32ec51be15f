"""Figures: the same shapes in SVG and in PNG, colors of both themes, and text that is no code."""

import re
from xml.etree import ElementTree

import numpy as np
from PIL import Image, ImageColor

from algorithm.tools.reports.figure import (
    N_SERIES_COLORS,
    PNG_SCALE,
    TEMPLATES,
    Figure,
    Path,
    Text,
    get_color,
    make_box,
    make_segments,
    read_colors,
)


def read_png(tmp_path, *shapes, size=(200.0, 100.0)) -> np.ndarray:
    """Return the pixels [height, width, 3] of a figure as PNG."""
    Figure(size=size, shapes=list(shapes)).write_png(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        assert image.size == tuple(round(PNG_SCALE * length) for length in size)
        return np.asarray(image).astype(int)


def find_places(pixels: np.ndarray, color: str) -> np.ndarray:
    """Return x and y [n, 2] of the pixels of a color, in pixels of the figure."""
    y, x = np.nonzero(np.abs(pixels - ImageColor.getrgb(read_colors()[color])).sum(-1) < 40)
    return np.stack((x, y), 1) / PNG_SCALE


def test_a_line_passes_through_its_points_and_stops_at_a_gap(tmp_path):
    points = np.array([(10, 90), (50, 20), (90, 90), (np.nan, 0), (120, 50), (np.nan, 0), (150, 50), (190, 50)])
    pixels = read_png(tmp_path, Path(points=points, color="series-0", width=4))
    x, y = find_places(pixels, "series-0").T
    assert abs(x[y.argmin()] - 50) < 3 and abs(y.min() - 20) < 3 and abs(x.min() - 10) < 3 and abs(x.max() - 190) < 3
    assert not ((x > 94) & (x < 117)).any() and not ((x > 124) & (x < 147)).any()
    dot = (x > 110) & (x < 130)
    assert 2 <= np.ptp(x[dot]) <= 5 and abs(y[dot].mean() - 50) < 1
    svg = Figure(size=(1, 1), shapes=[Path(points=points, color="series-0")]).to_svg()
    assert ' d="M10 90 50 20 90 90M120 50h0M150 50 190 50" ' in svg


def test_dashes_areas_and_opacity(tmp_path):
    level = Path(points=np.array([(0, 10), (200, 10)]), color="level", width=2, dash=(7, 5))
    area = Path(points=make_box(20, 30, 40, 50), color="series-1", width=0)
    pale = Path(points=make_box(100, 30, 40, 50), color="ink", width=0, opacity=0.5)
    pixels = read_png(tmp_path, level, area, pale)
    assert 0.45 < len(np.unique(find_places(pixels, "level")[:, 0])) / 300 < 0.7
    x, y = find_places(pixels, "series-1").T
    assert abs(len(x) / PNG_SCALE**2 - 40 * 50) < 200 and abs(x.min() - 20) < 2 and abs(y.max() - 80) < 2
    ink = np.array(ImageColor.getrgb(read_colors()["ink"]))
    assert np.abs(pixels[75, 180] - (ink + 255) / 2).max() <= 1


def test_a_figure_in_a_figure_is_cut_off_at_its_edges(tmp_path):
    line = Path(points=np.array([(-50, 10), (150, 10)]), color="series-2", width=4)
    inner = Figure(size=(100, 40), shapes=[line], place=(50, 30))
    x, y = find_places(read_png(tmp_path, inner), "series-2").T
    assert abs(x.min() - 50) < 2 and abs(x.max() - 150) < 2 and abs(y.mean() - 40) < 1
    root = ElementTree.fromstring(Figure(size=(200, 100), shapes=[inner]).to_svg())
    assert root[0].attrib == {"x": "50", "y": "30", "width": "100", "height": "40", "overflow": "hidden"}


def test_text_is_at_its_anchor_and_no_code(tmp_path):
    for anchor, (low, high) in {"start": (100, 200), "middle": (50, 150), "end": (0, 100)}.items():
        x, y = find_places(read_png(tmp_path, Text(x=100, y=50, text="HHHHH\nH", anchor=anchor, color="ink")), "ink").T
        assert low <= x.min() < x.max() <= high and 35 < y.min() < y.max() < 52
    text = Text(x=0, y=0, text="<b>\x1b[31m\x9b & https://me:secret@host", is_bold=True)
    svg = Figure(size=(1, 1), shapes=[text]).to_svg()
    assert ">&lt;b&gt;[31m &amp; https://***@host</text>" in svg
    read_png(tmp_path, text)


def test_colors_are_variables_of_both_themes():
    shapes = [Path(points=make_segments(np.ones((2, 2))), color=get_color(index)) for index in range(9)]
    text = Figure(size=(1, 1), shapes=shapes).to_svg_file()
    used = set(re.findall(r"var\(--([\w-]+)\)", text))
    assert used == {f"series-{index}" for index in range(N_SERIES_COLORS)} | {"page"}
    style = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    for source in (style, ElementTree.fromstring(text)[0].text):
        light, dark = (re.findall(r"--([\w-]+):", block) for block in re.findall(r":root \{(.*?)\}", source, re.S))
        assert set(light) == set(dark) == set(read_colors()) > used | {"ink", "muted", "grid", "level", "panel"}
    assert read_colors()["page"] == "#ffffff"
