"""Charts: their paths, thinning, gaps, colors, and ids."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("matplotlib")

from algorithm.tools.reports.charts import (
    MAX_POINTS,
    Interval,
    Line,
    Samples,
    average_groups,
    draw_intervals,
    draw_lines,
    draw_samples,
    draw_shares,
    find_robust_range,
    spread_points,
    thin,
)
from algorithm.tools.reports.svg import CHARACTER_WIDTH, COLOR_VARIABLES, N_SERIES_COLORS, get_color


def draw(*lines: Line, **options) -> str:
    return draw_lines("chart", lines, **options)


def line(y, x=None, **fields) -> Line:
    y = np.asarray(y, float)
    return Line(
        label="a", color=0, x=np.arange(len(y), dtype=float) if x is None else np.asarray(x, float), y=y, **fields
    )


def read_path(svg: str, color: int) -> list[list[tuple[float, float]]]:
    """Return the pieces of the line of a color, as pixels."""
    (path,) = re.findall(rf'<path d="([^"]*)"[^>]*style="fill: none; stroke: var\(--series-{color}\)', svg)
    pieces: list[list[tuple[float, float]]] = []
    for command, x, y in re.findall(r"([ML]) ([-\d.]+) ([-\d.]+)", path):
        if command == "M":
            pieces.append([])
        pieces[-1].append((float(x), float(y)))
    return pieces


def test_a_line_passes_through_its_points_in_proportion():
    (piece,) = read_path(draw(line([0, 10, 5], x=[0, 100, 400])), 0)
    (x0, y0), (x1, y1), (x2, y2) = piece
    assert (x1 - x0) / (x2 - x0) == pytest.approx(0.25, abs=1e-4)
    assert (y0 - y2) / (y0 - y1) == pytest.approx(0.5, abs=1e-4)
    assert y1 < y0  # up is less


def test_the_path_ends_at_the_last_point_of_a_long_line():
    y = np.random.default_rng(0).normal(size=20_000).cumsum()
    long = read_path(draw(line(y), line([y.min(), y[-1], y.max()], x=[0, 19_999, 19_999], marked=True)), 0)
    assert len(long[0]) <= 600
    span = min(p[1] for p in long[0]), max(p[1] for p in long[0])
    x, height = long[0][-1]
    assert x == max(p[0] for p in long[0])
    assert (span[1] - height) / (span[1] - span[0]) == pytest.approx((y[-1] - y.min()) / np.ptp(y), abs=1e-3)


def test_nan_is_a_gap():
    pieces = read_path(draw(line([1, 2, np.nan, 4, 5])), 0)
    assert [len(piece) for piece in pieces] == [2, 2]


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=3000), st.integers(4, 500))
def test_a_thinned_line_keeps_its_ends_and_extremes(values, max_points):
    y = np.array(values)
    x = np.arange(len(y), dtype=float)
    few_x, few = thin(x, y, max_points)
    assert len(few) <= max(4, max_points)
    assert (few_x[0], few[0], few_x[-1], few[-1]) == (x[0], y[0], x[-1], y[-1])
    assert few.min() == y.min() and few.max() == y.max()
    assert (np.diff(few_x) > 0).all()
    assert (y[few_x.astype(int)] == few).all()


def test_a_thinned_line_keeps_gaps():
    y = np.arange(10_000.0)
    y[[2500, 7777]] = np.nan
    _, few = thin(np.arange(10_000.0), y)
    assert np.isnan(few).sum() == 2
    assert len(read_path(draw(line(y)), 0)) == 3


def test_grouped_shares_keep_the_mean_and_the_ends():
    x = np.cumsum(np.random.default_rng(0).uniform(1, 3, 1000))
    heights = np.random.default_rng(1).uniform(size=(2, 1000))
    edges, means = average_groups(x, heights, 50)
    assert edges[0] == 0 and edges[-1] == x[-1] and means.shape == (2, 50)
    widths = np.diff(x, prepend=0.0)
    assert means @ np.diff(edges) == pytest.approx(heights @ widths)


def test_colors_are_variables_of_the_page():
    lines = [
        line([i, i + 1]).__class__(label="", color=i, x=np.arange(2.0), y=np.array([i, i + 1.0])) for i in range(9)
    ]
    svg = draw(*lines, level=2.0)
    assert not re.search("#0[ab]00", svg)
    used = set(re.findall(r"var\((--[\w-]+)\)", svg))
    assert used <= set(COLOR_VARIABLES.values())
    assert {f"--series-{index}" for index in range(N_SERIES_COLORS)} | {"--level", "--muted", "--grid"} <= used
    assert get_color(0) == get_color(N_SERIES_COLORS)
    assert not re.search(r"(fill|stroke): #(?!fff)", svg)


def test_charts_of_one_page_share_no_ids():
    ids = [re.findall(r'\bid="([^"]+)"', draw_lines(name, [line([1, 2])])) for name in ("one", "two")]
    assert ids[0] and not set(ids[0]) & set(ids[1])
    svg = draw_lines("one", [line([1, 2])])
    references = set(re.findall(r'(?:url\(#|href="#)([^")]+)', svg))
    assert references == set(ids[0])


def test_text_stays_text_in_the_font_of_the_page():
    svg = draw(line([0, 30_000]), y_label="mean return", x_label="env steps")
    assert ">env steps</text>" in svg and ">mean return</text>" in svg and re.search(r">[12]\dk</text>", svg)
    assert "font-family" not in svg and "<style" not in svg


def test_a_chart_is_the_same_each_time():
    assert draw(line([1, 2])) == draw(line([1, 2]))


def test_charts_without_data_are_drawn():
    assert "<svg" in draw() and "<svg" in draw(line([])) and "<svg" in draw(line([np.nan]))
    assert "<svg" in draw_shares("shares", np.empty(0), {"a": np.empty(0)})
    assert "<svg" in draw_intervals("intervals", [])


def test_intervals_are_rows_from_the_top():
    svg = draw_intervals(
        "rows",
        [Interval(label=name, color=0, value=k, low=k - 1, high=k + 1) for k, name in enumerate(("first", "second"))],
    )
    height = {name: float(re.search(rf'y="([\d.]+)"[^>]*>{name}<', svg)[1]) for name in ("first", "second")}
    assert height["first"] < height["second"]


def test_long_labels_of_intervals_are_in_lines_that_fit():
    label = " ".join(f"word{number}" for number in range(30))
    svg = draw_intervals("rows", [Interval(label=label, color=0, value=1, low=0, high=2)], width=340)
    texts = re.findall(r">([^<]*word[^<]*)<", svg)
    assert " ".join(texts).split() == label.split()
    assert len(texts) > 4 and max(map(len, texts)) * CHARACTER_WIDTH < 340


@pytest.mark.parametrize("count", [0, 1, 2, 599, 601, 5000])
def test_spread_points_keep_the_ends(count):
    shown = spread_points(count)
    assert len(shown) == min(count, MAX_POINTS)
    assert list(shown[:1]) == [0][:count] and list(shown[-1:]) == [count - 1][: max(0, count)]
    assert np.ptp(np.diff(shown)) <= 1 if count > 2 else True


def test_many_points_with_intervals_are_thinned():
    y = np.arange(5000.0)
    svg = draw(line(y, low=y - 1, high=y + 1, marked=True))
    assert len(svg) < 200_000


def test_dots_of_samples_are_in_proportion():
    sample = Samples(label="a", color=0, values=np.array([0.0, 1.0, 4.0]), mean=2.0, low=1.0, high=3.0)
    svg = draw_samples("samples", [sample])
    (piece,) = [part for part in svg.split("<g") if part.count("<use") == 3 and "--series-0" in part]
    x = [float(found) for found in re.findall(r'x="([\d.]+)"', piece)]
    assert (x[1] - x[0]) / (x[2] - x[0]) == pytest.approx(0.25, abs=1e-3)
    bar = re.search(r'<path d="M (\S+) \S+\s+L (\S+) \S+\s*"[^>]*stroke: var\(--ink\); stroke-width: 2;', svg)
    assert (float(bar[1]) - x[0]) / (x[2] - x[0]) == pytest.approx(0.25, abs=1e-3)
    assert (float(bar[2]) - x[0]) / (x[2] - x[0]) == pytest.approx(0.75, abs=1e-3)


LEARNING = 500 * (1 - np.exp(-np.arange(100) / 20))


def test_a_few_extreme_values_do_not_widen_the_range():
    curve = LEARNING.copy()
    curve[40] = -1e5
    low, high = find_robust_range([line(LEARNING), line(curve)], 475.0)
    assert -300 < low < 0 and 496 < high < 800
    low, high = find_robust_range([line(LEARNING, low=curve, high=LEARNING + 1e6)], None)
    assert -300 < low < 0 and 496 < high < 800
    svg = draw(line(curve), y_range=(-250.0, 500.0))
    assert ">\N{MINUS SIGN}100k<" not in svg and ">450<" in svg


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
