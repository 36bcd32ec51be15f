"""The learning curve of a run: the series of its metrics, and the pixels of the picture."""

import numpy as np
import pytest
from PIL import Image, ImageColor

from algorithm.tools.reports import curve
from algorithm.tools.reports.curve import (
    COLORS,
    CURVE_FILE,
    HEIGHT,
    LEFT,
    LEVEL,
    RIGHT,
    WIDTH,
    Series,
    compute_ranges,
    compute_ticks,
    draw_chart,
    draw_curve,
    read_columns,
)
from algorithm.training.metrics import MetricsWriter

X = np.array([0.0, 50.0, 100.0])


def line(y, **interval) -> Series:
    return Series(label="a", color=COLORS[0], x=X, y=np.array(y), **interval)


def picture(tmp_path, series, level=None) -> np.ndarray:
    """Return the pixels [height, width, 3] of a chart."""
    draw_chart(tmp_path / "chart.png", "title", ("steps", "return"), series, level)
    with Image.open(tmp_path / "chart.png") as image:
        return np.asarray(image)


def places(pixels: np.ndarray, color: str, top: int = 90) -> np.ndarray:
    """Return x and y [n, 2] of the pixels of this color, without the legend."""
    near = np.abs(pixels.astype(int) - ImageColor.getrgb(color)).sum(-1) < 40
    near[:top] = False
    y, x = np.nonzero(near)
    return np.stack((x, y), 1)


def test_a_line_passes_through_its_points_from_left_to_right(tmp_path):
    found = places(picture(tmp_path, [line([0.0, 10.0, 0.0])]), COLORS[0])
    x, y = found.T
    assert abs(x.min() - LEFT) <= 2 and abs(x.max() - (WIDTH - RIGHT)) <= 2
    assert abs(x[y.argmin()] - (LEFT + WIDTH - RIGHT) / 2) <= 3  # the peak
    assert y[x.argmin()] - y.min() > HEIGHT / 2


def test_points_are_drawn_with_their_intervals(tmp_path):
    level = np.full(3, 5.0)
    one = line([5.0, 5.0, 5.0], low=level - [0, 5, 0], high=level + [0, 5, 0])
    x, y = places(picture(tmp_path, [one]), COLORS[0]).T
    middle = y[np.abs(x - x.mean()) < 3]
    assert np.ptp(middle) > HEIGHT / 2 > 20 > np.ptp(y[x < LEFT + 8])
    assert not np.any(np.abs(x - (x.min() + x.mean()) / 2) < 5)  # no line connects them


def test_the_level_is_a_dashed_line(tmp_path):
    x, y = places(picture(tmp_path, [line([0.0, 1.0, 2.0])], level=1.5), LEVEL).T
    height = np.bincount(y).argmax()
    dashes = np.unique(x[y == height])
    assert 0.4 < len(dashes) / (WIDTH - RIGHT - LEFT) < 0.8


@pytest.mark.parametrize("series", [[], [line([1.0, 1.0, 1.0])]])
def test_series_without_extent_can_be_drawn(tmp_path, series):
    assert picture(tmp_path, series).shape == (HEIGHT, WIDTH, 3)


def test_axes_contain_all_values():
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
def test_ticks_are_round_numbers(low, high, expected):
    np.testing.assert_allclose(compute_ticks(low, high), expected)


@pytest.fixture
def folder(tmp_path):
    metrics = MetricsWriter(tmp_path)
    metrics.write(10, {"rollout/return": 1.0, "time/seconds": 2})
    metrics.write(15, {"eval/return": 3.0, "eval/return_low": 2.5, "eval/return_high": 3.5})
    metrics.write(20, {"rollout/return": 4.0})
    return tmp_path


@pytest.fixture
def drawn(monkeypatch):
    """Return the series and the level of every chart that is drawn."""
    calls, real = [], curve.draw_chart

    def draw(path, title, axes, series, level):
        real(path, title, axes, series, level)
        calls.append(({one.label: one for one in series}, level))

    monkeypatch.setattr(curve, "draw_chart", draw)
    return calls


def forbidden(line):
    raise AssertionError(line)


def test_a_table_is_read_by_column(folder):
    columns = read_columns(folder / "metrics.csv")
    np.testing.assert_array_equal(columns["env_steps"], [10, 15, 20])
    np.testing.assert_array_equal(columns["rollout/return"], [1, np.nan, 4])


def test_training_evaluation_and_goal_are_drawn(folder, drawn):
    assert draw_curve(folder, 5.0, forbidden) == folder / CURVE_FILE
    assert (folder / CURVE_FILE).read_bytes().startswith(b"\x89PNG")
    ((series, level),) = drawn
    training, evaluation = series["training"], series["evaluation, 95% interval"]
    assert level == 5
    assert (training.x.tolist(), training.y.tolist(), training.low) == ([10, 20], [1, 4], None)
    assert [values.tolist() for values in (evaluation.x, evaluation.low, evaluation.y, evaluation.high)] == [
        [15],
        [2.5],
        [3],
        [3.5],
    ]


def test_each_role_has_its_own_lines(tmp_path, drawn):
    metrics = MetricsWriter(tmp_path)
    metrics.write(10, {"rollout/return/left": 1.0, "rollout/return/right": 2.0})
    evaluated = {"eval/return/right": 3.0, "eval/return_low/right": 2.5, "eval/return_high/right": 3.5}
    metrics.write(15, evaluated)
    draw_curve(tmp_path, None, forbidden)
    ((series, level),) = drawn
    assert set(series) == {"training of left", "training of right", "evaluation of right, 95% interval"}
    assert len({one.color for one in series.values()}) == 3 and level is None


def test_a_run_without_a_return_has_an_empty_curve(tmp_path):
    metrics = MetricsWriter(tmp_path)
    metrics.write(10, {"time/seconds": 1.0})
    assert draw_curve(tmp_path, None, forbidden) == tmp_path / CURVE_FILE


@pytest.mark.parametrize("table", [None, "", "env_steps,rollout/return\n1,many\n"])
def test_a_picture_that_cannot_be_drawn_is_one_logged_line(tmp_path, table):
    if table is not None:
        (tmp_path / "metrics.csv").write_text(table)
    logged = []
    assert draw_curve(tmp_path, 5.0, logged.append) is None
    assert len(logged) == 1 and logged[0].startswith("no curve.png: ")
