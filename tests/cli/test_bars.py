"""Bars of the display, and the course of a number during a run."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithm.cli.display import (
    ASCII_LEVELS,
    LEVELS,
    MAX_POINTS,
    Trend,
    average_bins,
    draw_sparkline,
    read_memory,
    round_to_total,
)


@pytest.mark.parametrize("total", [100, 17, 1])
@pytest.mark.parametrize("shares", [[0.333, 0.333, 0.334], [0.004] * 5 + [0.98], [1.0], [0.495, 0.495, 0.01]])
def test_percentages_have_the_sum_of_a_hundred(shares, total):
    rounded = round_to_total(dict(enumerate(shares)), total)
    assert sum(rounded.values()) == total
    assert all(abs(rounded[part] - total * share) < 1 for part, share in enumerate(shares))
    assert round_to_total({"acting": 0.0}, 100) == {}


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([], ""),
        ([5.0], "▁"),
        ([3.0, 3.0, 3.0], "▁▁▁"),
        ([0.0, 1.0], "▁█"),
        ([0, 1, 2, 3, 4, 5, 6, 7], "▁▂▃▄▅▆▇█"),
        ([-7, 0, -3.4, -3.6], "▁█▅▄"),
        ([1e300, -1e300, 0.0], "█▁▅"),
    ],
)
def test_known_sparklines(values, line):
    assert draw_sparkline(values, LEVELS, 10).plain == line


def test_levels_have_an_ascii_character_each():
    assert len(LEVELS) == len(ASCII_LEVELS) == len(set(ASCII_LEVELS))
    assert ASCII_LEVELS.isascii()
    assert draw_sparkline([0.0, 1.0], ASCII_LEVELS, 10).plain == "_@"


@pytest.mark.parametrize(
    ("values", "bins", "means"),
    [([1, 2, 3], 5, [1, 2, 3]), ([1, 2, 3, 4], 2, [1.5, 3.5]), ([1, 2, 3, 4, 5], 2, [1.5, 4]), ([1, 2, 3], 1, [2])],
)
def test_known_means_of_bins(values, bins, means):
    assert average_bins(values, bins) == means


@given(st.lists(st.floats(-1e6, 1e6), max_size=2000))
def test_a_trend_has_a_bounded_number_of_points_with_the_mean_of_all_values(values):
    trend = Trend()
    for value in values:
        trend.add(value)
    points = trend.points
    assert len(points) <= MAX_POINTS
    if values:
        assert min(values) - 1e-6 <= min(points) and max(points) <= max(values) + 1e-6
    if len(values) < MAX_POINTS:
        assert points == values


def test_a_trend_keeps_the_course_of_a_long_run():
    trend = Trend()
    for value in [math.nan, *range(10_000), math.inf]:
        trend.add(value)
    points = trend.points
    assert MAX_POINTS / 2 <= len(points) <= MAX_POINTS
    assert points == sorted(points)
    assert points[0] < 50 and points[-1] > 9_900


def test_the_memory_of_this_process_is_plausible():
    held = bytearray(50_000_000)
    held[::4096] = b"1" * len(held[::4096])
    used = read_memory()
    assert used is not None and 50_000_000 < used < 10**11
