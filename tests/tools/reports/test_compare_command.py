"""The command compare, and the comparison at the end of repeated runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from algorithm.cli import main
from tests.task_folder import write_task
from tests.tools.reports.compared_folders import write_run

CONFIG = """
default:
  base_config: {env_type: PROBE, env_name: choice, max_step: 90, log_every: 30, n_envs: 3}
  acer_config: {rollout_length: 5, sequence_length: 5}
"""
RUNS = Path("runs/mine/task")


@pytest.fixture
def task():
    write_task(CONFIG)


@pytest.fixture
def runs():
    """Write two runs of ACER with the returns 10 and 20, and two of SAC with 12 and 14."""
    for name, variant, values in (("a", "default", (10.0, 20.0)), ("b", "sac", (12.0, 14.0))):
        for seed, value in enumerate(values):
            algorithm = "SAC" if variant == "sac" else "ACER"
            write_run(
                RUNS / f"{name}-{seed + 1}", {0: 0.0, 100: value}, seed=seed, variant=variant, algorithm=algorithm
            )


def test_runs_are_compared_in_tables_a_page_and_a_picture(runs, capsys):
    assert main.main(["compare", "runs/mine/task/*"]) == 0
    shown = capsys.readouterr().out
    assert "mine/task: rollout/return at 100 env steps" in shown
    rows = [line for line in shown.splitlines() if "15.00 [10.00, 20.00]" in line]
    assert len(rows) == 1 and "ACER" in rows[0] and "0 of 2" in rows[0]
    assert "0.500 [" in shown  # a run of ACER is below one of SAC, the other one above
    assert main.main(["compare", str(RUNS / "a-1"), str(RUNS / "a-2"), str(RUNS / "b-1"), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    (environment,) = record["environments"]
    assert [group["scores"] for group in environment["groups"]] == [[10, 20], [12]]
    assert environment["groups"][1]["mean"] == {"value": 12, "low": None, "high": None}
    assert [record[name] for name in ("page", "picture")] == [
        f"{RUNS.as_posix()}/compare.{end}" for end in ("html", "svg")
    ]
    assert "Comparison of 3 runs" in Path(record["page"]).read_text(encoding="utf-8")
    assert Path(record["picture"]).read_text(encoding="utf-8").startswith("<svg")


def test_repeated_runs_end_with_their_comparison(task, capsys):
    assert main.main("mine/task -n a --repeat 2 --json".split()) == 0
    result = json.loads(capsys.readouterr().out)
    assert len(result["runs"]) == 2 and result["spread"]["return"]["runs"] == 2
    comparison = result["comparison"]
    (group,) = comparison["environments"][0]["groups"]
    assert group["runs"] == ["runs/mine/task/a-1", "runs/mine/task/a-2"]
    assert comparison["page"] == "runs/mine/task/a-compare.html" and Path(comparison["page"]).is_file()


def test_a_comparison_that_fails_does_not_change_repeated_runs(task, monkeypatch, capsys):
    (RUNS / "a-compare.html").mkdir(parents=True)
    assert main.main("mine/task -n a --repeat 2".split()) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("the runs are not compared")]
    assert "a-compare.html" in line


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("compare nowhere", "nowhere: there is no such folder; name run folders, such as runs/gym/cartpole/*"),
        ("compare runs/empty", "there is no run with metrics in runs/empty"),
        ("compare runs --metric eval/return", "has no value of eval/return; compare another metric (--metric), it "),
        ("compare", "the following arguments are required: RUN_FOLDER"),
        ("compare runs --run", "unknown option --run"),
        ("list --metric eval/return", "unknown option --metric"),
    ],
)
def test_bad_input_is_one_line(runs, arguments, line, capsys):
    Path("runs/empty").mkdir()
    assert main.main(arguments.split()) == 2
    errors = [text for text in capsys.readouterr().err.splitlines() if text]
    assert len(errors) == 1 and line in errors[0]
