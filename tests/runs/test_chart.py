"""The picture of a chart, looked at pixel by pixel."""

import numpy as np
import pytest
from PIL import Image, ImageColor

from algorithm.runs.chart import (
    COLORS,
    HEIGHT,
    LEFT,
    LEVEL,
    RIGHT,
    WIDTH,
    Series,
    compute_ranges,
    compute_ticks,
    draw_chart,
)

X = np.array([0.0, 50.0, 100.0])


def line(y, **interval) -> Series:
    return Series(label="a", color=COLORS[0], x=X, y=np.array(y), **interval)


def picture(tmp_path, series, level=None) -> np.ndarray:
    """The pixels [height, width, 3] of a chart."""
    draw_chart(tmp_path / "chart.png", "title", ("steps", "return"), series, level)
    with Image.open(tmp_path / "chart.png") as image:
        return np.asarray(image)


def places(pixels: np.ndarray, color: str, top: int = 90) -> np.ndarray:
    """The x and y [n, 2] of the pixels of this color, without the legend."""
    near = np.abs(pixels.astype(int) - ImageColor.getrgb(color)).sum(-1) < 40
    near[:top] = False
    y, x = np.nonzero(near)
    return np.stack((x, y), 1)


def test_a_line_goes_from_left_to_right_through_its_points(tmp_path):
    found = places(picture(tmp_path, [line([0.0, 10.0, 0.0])]), COLORS[0])
    x, y = found.T
    assert abs(x.min() - LEFT) <= 2 and abs(x.max() - (WIDTH - RIGHT)) <= 2
    assert abs(x[y.argmin()] - (LEFT + WIDTH - RIGHT) / 2) <= 3  # the peak
    assert y[x.argmin()] - y.min() > HEIGHT / 2


def test_points_have_their_intervals(tmp_path):
    level = np.full(3, 5.0)
    one = line([5.0, 5.0, 5.0], low=level - [0, 5, 0], high=level + [0, 5, 0])
    x, y = places(picture(tmp_path, [one]), COLORS[0]).T
    middle = y[np.abs(x - x.mean()) < 3]
    assert np.ptp(middle) > HEIGHT / 2 > 20 > np.ptp(y[x < LEFT + 8])
    assert not np.any(np.abs(x - (x.min() + x.mean()) / 2) < 5)  # nothing joins them


def test_the_level_is_a_dashed_line(tmp_path):
    x, y = places(picture(tmp_path, [line([0.0, 1.0, 2.0])], level=1.5), LEVEL).T
    height = np.bincount(y).argmax()
    dashes = np.unique(x[y == height])
    assert 0.4 < len(dashes) / (WIDTH - RIGHT - LEFT) < 0.8


@pytest.mark.parametrize("series", [[], [line([1.0, 1.0, 1.0])]])
def test_what_has_no_extent_can_be_drawn(tmp_path, series):
    assert picture(tmp_path, series).shape == (HEIGHT, WIDTH, 3)


def test_ranges_hold_everything():
    one = line([0.0, 1.0, 2.0], low=np.array([-3.0, 0, 1]), high=np.array([1.0, 2, 3]))
    (left, right), (low, high) = compute_ranges([one], level=9.0)
    assert (left, right) == (0, 100) and low < -3 and high > 9


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (-210, 390, [-200, -100, 0, 100, 200, 300]),
        (0, 14_321, [0, 5_000, 10_000]),
        (0.96, 0.96055, [0.96, 0.9601, 0.9602, 0.9603, 0.9604, 0.9605]),
    ],
)
def test_ticks_are_round(low, high, expected):
    np.testing.assert_allclose(compute_ticks(low, high), expected)
