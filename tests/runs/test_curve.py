import numpy as np
import pytest

from algorithm.runs import curve
from algorithm.runs.curve import CURVE_FILE, draw_curve, read_columns
from algorithm.training.metrics import MetricsWriter


@pytest.fixture
def folder(tmp_path):
    metrics = MetricsWriter(tmp_path)
    metrics.write(10, {"rollout/return": 1.0, "time/seconds": 2})
    metrics.write(15, {"eval/return": 3.0, "eval/return_low": 2.5, "eval/return_high": 3.5})
    metrics.write(20, {"rollout/return": 4.0})
    metrics.close()
    return tmp_path


@pytest.fixture
def drawn(monkeypatch):
    """The series and the level of every chart that is drawn."""
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


def test_roles_have_lines_of_their_own(tmp_path, drawn):
    metrics = MetricsWriter(tmp_path)
    metrics.write(10, {"rollout/return/left": 1.0, "rollout/return/right": 2.0})
    evaluated = {"eval/return/right": 3.0, "eval/return_low/right": 2.5, "eval/return_high/right": 3.5}
    metrics.write(15, evaluated)
    metrics.close()
    draw_curve(tmp_path, None, forbidden)
    ((series, level),) = drawn
    assert set(series) == {"training of left", "training of right", "evaluation of right, 95% interval"}
    assert len({one.color for one in series.values()}) == 3 and level is None


def test_a_run_without_a_return_has_an_empty_curve(tmp_path):
    metrics = MetricsWriter(tmp_path)
    metrics.write(10, {"time/seconds": 1.0})
    metrics.close()
    assert draw_curve(tmp_path, None, forbidden) == tmp_path / CURVE_FILE


@pytest.mark.parametrize("table", [None, "", "env_steps,rollout/return\n1,many\n"])
def test_a_picture_that_fails_costs_one_line(tmp_path, table):
    if table is not None:
        (tmp_path / "metrics.csv").write_text(table)
    said = []
    assert draw_curve(tmp_path, 5.0, said.append) is None
    assert len(said) == 1 and said[0].startswith("no curve.png: ")
