"""The metrics of a run as arrays: gaps, roles, last values."""

from __future__ import annotations

import numpy as np
import pytest

from algorithm.tools.reports.run_metrics import make_metrics
from algorithm.training.metrics import read_table_if_present
from tests.builders import make_role


def read(tmp_path, *lines: str, roles=("agent",)):
    (tmp_path / "metrics.csv").write_text("\n".join([*lines, ""]))
    table = read_table_if_present(tmp_path / "metrics.csv")
    return make_metrics(table, {name: make_role() for name in roles})


def test_empty_cells_are_nan_and_rows_without_a_value_are_left_out(tmp_path):
    metrics = read(tmp_path, "env_steps,a,b", "1,0.5,", "2,,3", "3,0.7,4")
    env_steps, a, b = metrics.get_rows("a", "b")
    np.testing.assert_array_equal(env_steps, [1, 3])
    np.testing.assert_array_equal(a, [0.5, 0.7])
    np.testing.assert_array_equal(b, [np.nan, 4])
    assert metrics.find_last("a") == 0.7 and metrics.find_last("missing") is None


@pytest.mark.parametrize(
    ("lines", "env_steps", "values"),
    [
        (("1,5", "x", "y,", "2,6"), [1, 1, 2], [5, np.nan, 6]),
        (("x", "1,5"), [1, 1], [np.nan, 5]),
        (("1,5", "x"), [1, 1], [5, np.nan]),
        (("1,5", "x", "2,6", "x", "3,7"), [1, 1, 2, 2, 3], [5, np.nan, 6, np.nan, 7]),
    ],
)
def test_damaged_lines_are_one_gap_at_the_env_steps_before_them(tmp_path, lines, env_steps, values):
    metrics = read(tmp_path, "env_steps,a", *lines)
    for found, expected in zip(metrics.get_rows("a"), (env_steps, values), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert metrics.find_last("a") == next(value for value in reversed(values) if np.isfinite(value))


def test_a_table_without_a_readable_row_has_no_columns(tmp_path):
    assert read(tmp_path, "env_steps,a", "x").columns == {}
    assert read(tmp_path, "what is this").columns == {}
    assert make_metrics(read_table_if_present(tmp_path / "missing"), {}).columns == {}


def test_metrics_are_divided_by_role(tmp_path):
    metrics = read(
        tmp_path, "env_steps,eval/return/blue,train/loss/blue,train/loss/red blue,x/y", "1,2,3,4,5", roles=()
    )
    assert metrics.list_metrics() == {
        "eval/return": {"blue": "eval/return/blue"},
        "train/loss": {"blue": "train/loss/blue"},
        "train/loss/red blue": {"": "train/loss/red blue"},
        "x/y": {"": "x/y"},
    }
    metrics = read(tmp_path, "env_steps,train/loss/blue,train/loss/red blue", "1,2,3", roles=("blue", "red blue"))
    assert metrics.list_metrics() == {"train/loss": {"blue": "train/loss/blue", "red blue": "train/loss/red blue"}}
