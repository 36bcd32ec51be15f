from __future__ import annotations

import csv
from math import inf, nan

import pytest

from algorithm.training.metrics import MetricsWriter, format_number


def table(folder) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def write(folder, rows, env_steps=0):
    """Write rows {env steps: values} of a run that is resumed at `env_steps`. Return the cells of all rows."""
    metrics = MetricsWriter(folder, env_steps)
    for steps, values in rows.items():
        metrics.write(steps, values)
    return [list(row.values()) for row in table(folder)]


def test_rows_are_appended_and_a_new_name_widens_the_table(tmp_path):
    cells = write(tmp_path, {10: {"a": 0.5}, 20: {"b": 2, "a": 3}, 25: {"a": 1, "b": 4}, 30: {'train/"c", d': 4}})
    assert cells == [["10", "0.5", "", ""], ["20", "3", "2", ""], ["25", "1", "4", ""], ["30", "", "", "4"]]
    assert list(table(tmp_path)[0]) == ["env_steps", "a", "b", 'train/"c", d']
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.csv"]


def test_a_resumed_run_continues_the_same_table_after_its_checkpoint(tmp_path):
    write(tmp_path, {10: {"a": 1, "b": 2}, 20: {"a": 2, "b": 0}, 30: {"a": 3, "b": 0}})
    cells = write(tmp_path, {25: {"b": 3}, 35: {"c": 4}}, env_steps=20)
    assert cells == [["10", "1", "2", ""], ["20", "2", "0", ""], ["25", "", "3", ""], ["35", "", "", "4"]]
    assert list(table(tmp_path)[0]) == ["env_steps", "a", "b", "c"]


def test_an_incomplete_last_row_is_dropped(tmp_path):
    write(tmp_path, {10: {"a": 1}})
    whole = (tmp_path / "metrics.csv").read_bytes()
    for partial in (b"1", b"12,", b"12,3", b"12,3\r"):
        (tmp_path / "metrics.csv").write_bytes(whole + partial)
        assert write(tmp_path, {}, env_steps=1000) == [["10", "1"]]


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
