from __future__ import annotations

import csv
from math import inf, nan

import numpy as np
import pytest

from algorithm.tracking.trackers import Tracker
from algorithm.training.metrics import MetricsWriter, format_number


def table(folder) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_rows_are_appended_under_the_same_columns(tmp_path):
    metrics = MetricsWriter(tmp_path)
    metrics.write(10, {"train/critic_loss": 0.5, "rollout/return": 3})
    metrics.write(20, {"rollout/return": 4, "train/critic_loss": 0.25})
    assert table(tmp_path) == [
        {"env_steps": "10", "train/critic_loss": "0.5", "rollout/return": "3"},
        {"env_steps": "20", "train/critic_loss": "0.25", "rollout/return": "4"},
    ]


def test_a_new_name_widens_the_table_and_leaves_older_rows_empty_there(tmp_path):
    metrics = MetricsWriter(tmp_path)
    metrics.write(10, {"a": 1})
    metrics.write(20, {"b": 2, "a": 3})
    metrics.write(30, {"c": 4})
    assert table(tmp_path) == [
        {"env_steps": "10", "a": "1", "b": "", "c": ""},
        {"env_steps": "20", "a": "3", "b": "2", "c": ""},
        {"env_steps": "30", "a": "", "b": "", "c": "4"},
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.csv"]


def test_names_with_commas_and_quotes_are_kept(tmp_path):
    metrics = MetricsWriter(tmp_path)
    metrics.write(1, {'train/"a", b': 1})
    metrics.write(2, {"c": 2})
    assert table(tmp_path)[0]['train/"a", b'] == "1"


def test_a_resumed_run_continues_the_same_table(tmp_path):
    metrics = MetricsWriter(tmp_path)
    metrics.write(10, {"a": 1, "b": 2})
    again = MetricsWriter(tmp_path, env_steps=10)
    again.write(20, {"b": 3})
    again.write(30, {"c": 4})
    assert [list(row.values()) for row in table(tmp_path)] == [
        ["10", "1", "2", ""],
        ["20", "", "3", ""],
        ["30", "", "", "4"],
    ]
    assert list(table(tmp_path)[0]) == ["env_steps", "a", "b", "c"]


def test_rows_after_the_checkpoint_are_dropped(tmp_path):
    metrics = MetricsWriter(tmp_path)
    for env_steps in (10, 20, 30):
        metrics.write(env_steps, {"a": env_steps / 10, "b": 0})
    again = MetricsWriter(tmp_path, env_steps=20)
    again.write(25, {"a": 7})
    again.write(35, {"a": 8})
    assert [(row["env_steps"], row["a"]) for row in table(tmp_path)] == [
        ("10", "1.0"),
        ("20", "2.0"),
        ("25", "7"),
        ("35", "8"),
    ]


def test_an_incomplete_last_row_is_dropped(tmp_path):
    metrics = MetricsWriter(tmp_path)
    metrics.write(10, {"a": 1})
    whole = (tmp_path / "metrics.csv").read_bytes()
    for partial in (b"1", b"12,", b"12,3", b"12,3\r"):
        (tmp_path / "metrics.csv").write_bytes(whole + partial)
        MetricsWriter(tmp_path, env_steps=1000)
        assert table(tmp_path) == [{"env_steps": "10", "a": "1"}]


def test_trackers_receive_the_rows_and_the_histograms(tmp_path):
    class Recorder(Tracker):
        received = []

        def log(self, env_steps, values):
            self.received.append((env_steps, dict(values)))

        def log_histograms(self, env_steps, values):
            self.received.append((env_steps, {name: array.tolist() for name, array in values.items()}))

        def finish(self, record):
            raise AssertionError("the caller finishes it")

    metrics = MetricsWriter(tmp_path, trackers=Recorder())
    metrics.write(10, {"rollout/return": 1.5})
    metrics.write_histograms(10, {"actions/0": np.array([1.0])})
    assert Recorder.received == [(10, {"rollout/return": 1.5}), (10, {"actions/0": [1.0]})]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.955, "0.955"),
        (-0.955, "-0.955"),
        (0.5, "0.500"),
        (0.0021449, "0.00214"),
        (0.0, "0.00"),
        (1.0, "1.000"),
        (9.99961, "10.00"),
        (-10.5, "-10.50"),
        (478.25, "478.2"),
        (999.96, "1,000"),
        (12_345.6, "12,346"),
        (-1_234_567.8, "-1,234,568"),
        (3.21e12, "3.21e+12"),
        (inf, "inf"),
        (nan, "-"),
        (None, "-"),
    ],
)
def test_three_or_four_significant_digits(value, text):
    assert format_number(value) == text
