import sys

import numpy as np
import pytest

from algorithm.experiment.curve import CURVE, draw_curve, read_columns
from algorithm.loop.metrics import Metrics

matplotlib = pytest.importorskip("matplotlib")


@pytest.fixture
def folder(tmp_path):
    metrics = Metrics(tmp_path)
    metrics.write(10, {"reward/return": 1.0, "time/seconds": 2})
    metrics.write(15, {"eval/return": 3.0, "eval/return_low": 2.5, "eval/return_high": 3.5})
    metrics.write(20, {"reward/return": 4.0})
    metrics.close()
    return tmp_path


@pytest.fixture
def axes(monkeypatch):
    """The axes of every figure that is drawn."""
    from matplotlib.figure import Figure

    drawn, real = [], Figure.subplots
    monkeypatch.setattr(Figure, "subplots", lambda self: drawn.append(real(self)) or drawn[-1])
    return drawn


def forbidden(line):
    raise AssertionError(line)


def test_a_table_is_read_by_column(folder):
    columns = read_columns(folder / "metrics.csv")
    np.testing.assert_array_equal(columns["env_steps"], [10, 15, 20])
    np.testing.assert_array_equal(columns["reward/return"], [1, np.nan, 4])


def test_training_evaluation_and_goal_are_drawn(folder, axes):
    assert draw_curve(folder, 5.0, forbidden) == folder / CURVE
    assert (folder / CURVE).read_bytes().startswith(b"\x89PNG")
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes[0].get_lines()}
    assert lines["training"] == [[10, 1], [20, 4]]
    assert [y for _, y in lines["goal"]] == [5, 5]
    (bars,) = axes[0].containers
    assert bars.lines[0].get_xydata().tolist() == [[15, 3]]
    np.testing.assert_allclose(bars.lines[2][0].get_segments()[0], [[15, 2.5], [15, 3.5]])


def test_roles_have_lines_of_their_own(tmp_path, axes):
    metrics = Metrics(tmp_path)
    metrics.write(10, {"reward/return/left": 1.0, "reward/return/right": 2.0})
    evaluated = {"eval/return/right": 3.0, "eval/return_low/right": 2.5, "eval/return_high/right": 3.5}
    metrics.write(15, evaluated)
    metrics.close()
    draw_curve(tmp_path, None, forbidden)
    assert {line.get_label() for line in axes[0].get_lines()} >= {"training of left", "training of right"}
    assert len(axes[0].containers) == 1
    assert "goal" not in axes[0].get_legend_handles_labels()[1]


def test_a_run_without_a_return_has_an_empty_curve(tmp_path):
    metrics = Metrics(tmp_path)
    metrics.write(10, {"time/seconds": 1.0})
    metrics.close()
    assert draw_curve(tmp_path, None, forbidden) == tmp_path / CURVE


def test_without_matplotlib_there_is_one_line_that_says_how_to_get_it(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    said = []
    assert draw_curve(folder, 5.0, said.append) is None
    assert said == ['no curve.png, since matplotlib is not installed: pip install -e ".[report]"']
    assert not (folder / CURVE).exists()


@pytest.mark.parametrize("table", [None, "", "env_steps,reward/return\n1,many\n"])
def test_a_picture_that_fails_costs_one_line(tmp_path, table):
    if table is not None:
        (tmp_path / "metrics.csv").write_text(table)
    said = []
    assert draw_curve(tmp_path, 5.0, said.append) is None
    assert len(said) == 1 and said[0].startswith("no curve.png: ")
