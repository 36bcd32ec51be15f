"""The data of a run folder, of complete, running, interrupted and damaged runs; and its metrics as arrays."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from algorithm import records_io
from algorithm.parts.lock import FolderLock
from algorithm.tools.reports.comparison import compare
from algorithm.tools.reports.report_files import write_files
from algorithm.tools.reports.run_data import make_metrics, read_run
from algorithm.training.metrics import read_table
from tests.builders import make_role
from tests.tools.reports.run_folders import RESULT, write_run

ROOT = Path(__file__).resolve().parents[3]
WITHOUT_TORCH = """
import sys
from pathlib import Path
from algorithm.tools.reports.run_data import read_run
assert read_run(Path(sys.argv[1])).networks
assert "torch" not in sys.modules and "matplotlib" not in sys.modules
"""


@pytest.fixture(scope="module")
def complete(tmp_path_factory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "gym/cartpole/first")


@pytest.fixture
def run(complete, tmp_path) -> Path:
    """A copy of a complete run, for changes."""
    return Path(shutil.copytree(complete, tmp_path / "gym/cartpole/first"))


def test_a_complete_run_has_no_problem(complete):
    data = read_run(complete)
    assert data.problems == [] and data.record == RESULT and not data.in_training
    assert (data.environment, data.name, data.algorithm, data.goal) == ("gym/cartpole", "first", "ACER", 475)
    assert data.lineage == []
    assert [session["env_steps"] for session in data.sessions] == [0, 3000]
    assert [path.name for path in data.videos] == [
        f"{name}.{suffix}" for name in ("6000-best", "6000-worst", "3000-best") for suffix in ("gif", "mp4")
    ]
    assert data.changes == [(3000, "acer_config.gamma", 0.9, 0.98)]


def test_settings_of_roles_with_another_algorithm_count(run):
    file, own = run / "config.yaml", "ma_config: {blue: {base_config: {algorithm: sac}}}"
    file.write_text(file.read_text().replace("ma_config: {}", own))
    paths = {path for path, *_ in read_run(run).differences}
    assert {"sac_config.gamma", "acer_config.gamma"} <= paths


def test_a_run_whose_lock_is_held_is_in_training(run, monkeypatch):
    monkeypatch.setattr(FolderLock, "is_held_elsewhere", lambda lock: lock.path == run / ".lock")
    assert read_run(run).in_training


@pytest.mark.parametrize(
    ("name", "content", "missing"),
    [
        ("config.yaml", "a: [", "settings"),
        ("roles.json", "{", "roles"),
        ("networks.json", '{"agent": {}}', "networks"),
        ("sessions.jsonl", '{"env_steps": 0}\n', "sessions"),
        ("result.json", "[]", None),
        ("configs/0.yaml", "a: [", "changes"),
    ],
)
def test_a_damaged_file_is_one_line_and_the_rest_is_read(run, name, content, missing):
    (run / name).write_text(content)
    data = read_run(run)
    (problem,) = data.problems
    assert problem.startswith(name) and "\n" not in problem
    if missing:
        assert not getattr(data, missing)
    assert data.metrics.get_known("train/entropy")[-1] == pytest.approx(0.4)


def test_all_files_may_be_missing(tmp_path):
    data = read_run(tmp_path)
    assert data.problems == ["config.yaml: the file does not exist"]
    assert data.metrics.columns == {} and data.record["status"] is None
    assert data.algorithm == "unknown algorithm" and data.goal is None


def test_the_older_part_of_a_rotated_log_comes_first(run):
    (run / "faults.log.1").write_text("older\n\n")
    faults = read_run(run).faults
    assert faults[0] == "older" and len(faults) == 2


def test_a_run_is_read_without_torch(complete):
    subprocess.run([sys.executable, "-c", WITHOUT_TORCH, str(complete)], cwd=ROOT, check=True)


def read_metrics(tmp_path, *lines: str, roles=("agent",)):
    (tmp_path / "metrics.csv").write_text("\n".join([*lines, ""]))
    table = read_table(tmp_path / "metrics.csv")
    return make_metrics(table, {name: make_role() for name in roles})


def test_empty_cells_are_nan_and_rows_without_a_value_are_left_out(tmp_path):
    metrics = read_metrics(tmp_path, "env_steps,a,b", "1,0.5,", "2,,3", "3,0.7,4")
    env_steps, a, b = metrics.get_rows("a", "b")
    np.testing.assert_array_equal(env_steps, [1, 3])
    np.testing.assert_array_equal(a, [0.5, 0.7])
    np.testing.assert_array_equal(b, [np.nan, 4])
    assert metrics.get_known("a").tolist() == [0.5, 0.7] and not len(metrics.get_known("missing"))


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
    metrics = read_metrics(tmp_path, "env_steps,a", *lines)
    for found, expected in zip(metrics.get_rows("a"), (env_steps, values), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert metrics.get_known("a").tolist() == [value for value in values if np.isfinite(value)]


def test_a_table_without_a_readable_row_has_no_columns(tmp_path):
    assert read_metrics(tmp_path, "env_steps,a", "x").columns == {}
    assert read_metrics(tmp_path, "what is this").columns == {}
    assert make_metrics(read_table(tmp_path / "missing"), {}).columns == {}


def test_metrics_are_divided_by_role(tmp_path):
    header = "env_steps,eval/return/blue,train/loss/blue,train/loss/red blue,x/y"
    metrics = read_metrics(tmp_path, header, "1,2,3,4,5", roles=())
    assert metrics.list_metrics() == {
        "eval/return": {"blue": "eval/return/blue"},
        "train/loss": {"blue": "train/loss/blue"},
        "train/loss/red blue": {"": "train/loss/red blue"},
        "x/y": {"": "x/y"},
    }
    header = "env_steps,train/loss/blue,train/loss/red blue"
    metrics = read_metrics(tmp_path, header, "1,2,3", roles=("blue", "red blue"))
    assert metrics.list_metrics() == {"train/loss": {"blue": "train/loss/blue", "red blue": "train/loss/red blue"}}


def test_a_report_and_a_comparison_read_metrics_once(run, monkeypatch):
    """Reading metrics.csv takes most of the time of a long run's page."""
    lines = []
    split = records_io._split_cells
    monkeypatch.setattr(records_io, "_split_cells", lambda line: lines.append(line) or split(line))
    for read in (lambda: write_files(run, pytest.fail), lambda: compare([str(run)], None, lambda line: None)):
        lines.clear()
        read()
        assert lines == (run / "metrics.csv").read_text(encoding="utf-8").splitlines()
