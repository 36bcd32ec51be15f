"""Charts and their shapes: paths, gaps, ranges, pictures; the same in SVG and in PNG, with colors of both themes."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageColor

from algorithm.tools.reports.charts import (
    CHARACTER_WIDTH,
    DASH,
    DASH_GAP,
    MAX_POINTS,
    N_SERIES_COLORS,
    PNG_SCALE,
    Figure,
    Line,
    Path,
    Row,
    Text,
    compute_ticks,
    draw_lines,
    draw_picture,
    draw_rows,
    find_robust_range,
    get_color,
    make_box,
    make_segments,
    read_colors,
    thin,
)
from algorithm.tools.reports.page import render

LEARNING = 500 * (1 - np.exp(-np.arange(100) / 20))


def line(y, x=None, **fields) -> Line:
    y = np.asarray(y, float)
    return Line(color=0, x=np.arange(len(y), dtype=float) if x is None else np.asarray(x, float), y=y, **fields)


def draw(*lines: Line, **options) -> str:
    return draw_lines(lines, **options).figure.to_svg()


def read_paths(svg: str, color: str, width: str = "1.6") -> list[list[np.ndarray]]:
    """Return the pieces [n, 2] of each line of a color and a width, in pixels of the area between the axes."""
    paths = [each.attrib for each in ElementTree.fromstring(svg).iter("path")]
    drawn = [
        each["d"] for each in paths if (each.get("stroke"), each.get("stroke-width")) == (f"var(--{color})", width)
    ]
    return [
        [np.array(list(map(float, piece.removesuffix("h0").split()))).reshape(-1, 2) for piece in d.split("M")[1:]]
        for d in drawn
    ]


def read_texts(svg: str) -> list[str | None]:
    return [each.text for each in ElementTree.fromstring(svg).iter("text")]


def test_a_line_passes_through_its_points_in_proportion():
    (((x0, y0), (x1, y1), (x2, y2)),) = read_paths(draw(line([0, 10, 5], x=[0, 100, 400])), "series-0")[0]
    assert (x1 - x0) / (x2 - x0) == pytest.approx(0.25, abs=1e-4)
    assert (y0 - y2) / (y0 - y1) == pytest.approx(0.5, abs=1e-4)
    assert y1 < y0  # up is less


def test_numbers_and_grid_of_the_axes_are_at_their_values():
    texts = read_texts(draw(line([-0.5, 0.5], x=[0, 30_000]), y_label="mean return"))
    assert {"env steps", "mean return", "10k", "30k", "0", "-0.4"} <= set(texts)
    assert "".join(texts).isascii()  # the font of pictures has no minus sign
    figure = draw_lines([line([0, 12], x=[0, 100])], y_range=(0.0, 12.0)).figure
    labels = {shape.text: shape for shape in figure.shapes if hasattr(shape, "text")}
    (left, top), (width, height) = figure.shapes[-1].place, figure.shapes[-1].size
    assert labels["40"].x == pytest.approx(left + width * 41 / 102) and labels["40"].y > top + height
    assert labels["10"].y - 4 == pytest.approx(top + height * 2 / 12) and labels["10"].x < left
    levels = [shape.points[0, 1] for shape in figure.shapes[-1].shapes if shape.color == "grid"]
    assert levels == pytest.approx([height * (12 - value) / 12 for value in (0, 2, 4, 6, 8, 10, 12)])


def test_points_have_bars_from_their_low_to_their_high_bounds():
    y = np.array([5.0, 6, np.nan])
    svg = draw(line(y, low=y - [1, 2, 0], high=y + 3, marked=True), y_range=(0.0, 10.0))
    (bars,), (dots,) = read_paths(svg, "series-0"), read_paths(svg, "series-0", "5")
    heights = [np.ptp(bar[:, 1]) for bar in bars]
    assert heights[0] / heights[1] == pytest.approx(4 / 5, abs=1e-3) and [len(dot) for dot in dots] == [1, 1]
    assert [bar[:, 0].tolist() for bar in bars] == [[dot[0, 0]] * 2 for dot in dots]
    many = np.arange(5000.0)
    assert len(draw(line(many, low=many - 1, high=many + 1, marked=True))) < 100_000


def test_a_band_is_the_area_between_the_bounds():
    y = np.array([1.0, 2, np.nan, 4, 5])
    svg = draw(line(y, low=y - 1, high=y + 1), y_range=(0.0, 6.0))
    assert [[len(piece) for piece in pieces] for pieces in read_paths(svg, "series-0")] == [[2, 2]]  # NaN is a gap
    areas = re.findall(r'<path d="M([^"M]*)" fill="var\(--series-0\)" opacity="0.18"', svg)
    corners = [np.array(list(map(float, area.split()))).reshape(-1, 2) for area in areas]
    assert [len(area) for area in corners] == [4, 4]
    (left, low), (_, next_low), _, (same, high) = corners[0]
    assert left == same and (low - high) / (low - next_low) == pytest.approx(2, abs=1e-2)


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=3000), st.integers(4, 500))
def test_a_thinned_line_keeps_its_ends_and_extremes(values, max_points):
    y = np.array(values)
    x = np.arange(len(y), dtype=float)
    kept = thin(y, max_points)
    few_x, few = x[kept], y[kept]
    assert len(few) <= max(4, max_points)
    assert (few_x[0], few[0], few_x[-1], few[-1]) == (x[0], y[0], x[-1], y[-1])
    assert few.min() == y.min() and few.max() == y.max()
    assert (np.diff(few_x) > 0).all()


def test_a_thinned_line_keeps_gaps():
    y = np.arange(10_000.0)
    y[[2500, 7777]] = np.nan
    assert np.isnan(y[thin(y)]).sum() == 2
    pieces = read_paths(draw(line(y)), "series-0")[0]
    assert len(pieces) == 3 and sum(map(len, pieces)) <= MAX_POINTS


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1.02, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (390, -210, [-200, -100, 0, 100, 200, 300]),
        (0, 14_321, [0, 2500, 5000, 7500, 10_000, 12_500]),
        (0.96, 0.96055, [0.96, 0.9601, 0.9602, 0.9603, 0.9604, 0.9605]),
    ],
)
def test_ticks_are_round_numbers(low, high, expected):
    np.testing.assert_allclose(compute_ticks(low, high), expected)


def test_charts_without_data_are_drawn():
    charts = [draw_lines(lines) for lines in ([], [line([])], [line([np.nan])], [line([3, 3, 3])])]
    charts += [draw_rows(rows) for rows in ([], [Row(label="", color=0, value=1, low=None, high=None)])]
    assert all("nan" not in chart.figure.to_svg() for chart in charts)


def test_intervals_are_rows_from_the_top_with_a_point_and_its_bounds():
    rows = [Row(label=name, color=k, value=k, low=k - 1, high=k + 1) for k, name in enumerate(("first", "second"))]
    svg = draw_rows(rows, level=0.5).figure.to_svg()
    ((top,),), ((bottom,),) = read_paths(svg, "series-0", "6"), read_paths(svg, "series-1", "6")
    ((bar,),) = read_paths(svg, "series-0", "5")
    assert bottom[0, 1] > top[0, 1] == bar[0, 1] and bar[:, 0].mean() == pytest.approx(top[0, 0], abs=0.01)
    assert bottom[0, 0] - top[0, 0] == pytest.approx(bar[1, 0] - top[0, 0], abs=0.01)
    (dashes,) = read_paths(svg, "level", "1.2")
    (x,) = {x for dash in dashes for x in dash[:, 0]}
    assert x == pytest.approx((top[0, 0] + bottom[0, 0]) / 2, abs=0.01)
    ends = np.array([dash[:, 1] for dash in dashes])
    height = draw_rows(rows).figure.shapes[-1].size[1]
    assert np.diff(ends[:-1]) == pytest.approx(DASH) and np.diff(ends[:, 0]) == pytest.approx(DASH + DASH_GAP)
    assert ends[0, 0] == 0 and ends[-1, 1] == height


def test_long_labels_of_intervals_are_in_lines_that_fit():
    label = " ".join(f"word{number}" for number in range(30))
    svg = draw_rows([Row(label=label, color=0, value=1, low=0, high=2)], width=340).figure.to_svg()
    lines = [each for each in ElementTree.fromstring(svg).iter("text") if each.text and "word" in each.text]
    lines.sort(key=lambda each: float(each.get("y")))
    assert " ".join(each.text for each in lines).split() == label.split()
    assert len(lines) > 4 and max(len(each.text) for each in lines) * CHARACTER_WIDTH < 340


def test_dots_of_samples_are_in_proportion():
    row = Row(label="a", color=0, values=np.array([0.0, 1.0, 4.0]), value=2.0, low=1.0, high=3.0)
    svg = draw_rows([row]).figure.to_svg()
    styles = ("series-0", "5"), ("ink", "5"), ("ink", "6")
    (dots,), ((bar,),), ((mean,),) = (read_paths(svg, *style) for style in styles)
    x = [dot[0, 0] for dot in dots]
    expected = {"dot": (x[1], 0.25), "low": (bar[0, 0], 0.25), "high": (bar[1, 0], 0.75), "mean": (mean[0, 0], 0.5)}
    for place, share in expected.values():
        assert (place - x[0]) / (x[2] - x[0]) == pytest.approx(share, abs=1e-3)


def test_a_few_extreme_values_do_not_widen_the_range():
    curve = LEARNING.copy()
    curve[40] = -1e5
    low, high = find_robust_range([line(LEARNING), line(curve)], 475.0)
    assert -300 < low < 0 and 496 < high < 800
    low, high = find_robust_range([line(LEARNING, low=curve, high=LEARNING + 1e6)], None)
    assert -300 < low < 0 and 496 < high < 800
    texts = read_texts(draw(line(curve), y_range=(-250.0, 500.0)))
    assert "-100k" not in texts and "400" in texts


@pytest.mark.parametrize(
    ("curve", "level"),
    [
        (LEARNING, 475.0),
        (np.r_[20.0, np.full(99, 500.0)], 475.0),  # the start of a fast run is no extreme value
        (np.r_[np.full(99, 0.0), 1.0], 1.0),
        (np.full(50, 3.0), None),
        (np.full(50, np.nan), 1.0),
        (np.zeros(0), None),
    ],
)
def test_a_curve_without_extreme_values_is_shown_completely(curve, level):
    assert find_robust_range([line(curve)], level) is None


def test_an_interval_without_a_bound_is_no_extreme_value():
    unbounded = line([400.0], [50], low=np.array([-np.inf]), high=np.array([np.inf]), marked=True)
    assert find_robust_range([line(LEARNING), unbounded], 475.0) is None
    assert "inf" not in draw(line(LEARNING), unbounded)


def test_a_picture_has_the_charts_below_each_other_with_titles_and_legends():
    drawn = [Line(color=9, x=np.arange(2.0), y=np.arange(2.0), label="a < b"), line([1, 2])]
    charts = [draw_lines(drawn, title=name) for name in ("<one>", "two")]
    root = ElementTree.fromstring(draw_picture(charts).to_svg_file())
    svg = "{http://www.w3.org/2000/svg}"
    places = [float(chart.get("y")) for chart in root.findall(f"{svg}svg")]
    assert places[1] >= places[0] + charts[0].figure.size[1] and float(root.get("height")) > places[1] + 260
    texts = {text.text: float(text.get("y")) for text in root.findall(f"{svg}text")}
    assert texts["<one>"] < places[0] < texts["two"] < texts["a < b"] < places[1]
    assert sum(path.get("fill") == "var(--series-1)" for path in root.findall(f"{svg}path")) == 2


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


def test_areas_and_opacity(tmp_path):
    area = Path(points=make_box(20, 30, 40, 50), color="series-1", width=0)
    pale = Path(points=make_box(100, 30, 40, 50), color="ink", width=0, opacity=0.5)
    pixels = read_png(tmp_path, area, pale)
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
    page = render("base.html")
    for source in (page, ElementTree.fromstring(text)[0].text):
        light, dark = (re.findall(r"--([\w-]+):", block) for block in re.findall(r":root \{(.*?)\}", source, re.S))
        assert set(light) == set(dark) == set(read_colors()) > used | {"ink", "muted", "grid", "level", "panel"}
    assert read_colors()["page"] == "#ffffff"
