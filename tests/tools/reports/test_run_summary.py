"""The summary of a run: its outcome in words, its numbers, and its tables."""

from __future__ import annotations

import pytest

from algorithm.specs import ActionPart, ActionSpec, ObsSpec, Role
from algorithm.tools.reports.report_files import (
    BAD,
    GOOD,
    WAITING,
    list_commands,
    list_environment,
    list_facts,
    list_machine,
    list_spaces,
    list_versions,
    make_headline,
    make_report,
)
from algorithm.tools.reports.run_data import RunData, read_run
from tests.builders import make_role
from tests.tools.reports.run_folders import RESULT, PageReader


def make_run(tmp_path, **changes):
    """Return a run whose result differs from a usual one by `changes`."""
    run = read_run(tmp_path)
    run.record, run.settings = {**RESULT, **changes}, {"goal": {"return": 475}}
    return run


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({}, GOOD, ["Goal reached", "goal of 475 after 6,000 env steps", "evaluation episodes confirm"]),
        ({"confirmed_by": "training"}, GOOD, ["training episodes only", "training episodes confirm"]),
        ({"reached": False}, BAD, ["Goal not reached", "did not reach the goal of 475 within 6,000 env steps"]),
        ({"reached": None}, GOOD, ["Done", "trained for 6,000 env steps, without a goal"]),
        ({"status": 130}, WAITING, ["Interrupted", "A signal ended the run after 6,000 env steps."]),
        ({"status": 143}, WAITING, ["Ended", "A signal ended the run"]),
        ({"status": 4}, BAD, ["Diverged", "exit status 4 after 6,000 env steps."]),
        ({"status": 1, "failure": "No port."}, BAD, ["Failed (1)", "exit status 1 after 6,000 env steps: No port."]),
        ({"status": None}, WAITING, ["Unfinished", "metrics end at 6,000 env steps"]),
    ],
)
def test_outcomes(tmp_path, changes, kind, words):
    outcome = make_headline(make_run(tmp_path, **changes))
    assert outcome.kind == kind
    for word in words:
        assert word in f"{outcome.label} {outcome.sentence}"


@pytest.mark.parametrize(
    ("low", "high", "interval"),
    [(428.8, 530.6, "428.8 to 530.6"), (None, None, "unknown"), (475, 490, ""), (450, 474.9, "")],
)
@pytest.mark.parametrize("reached", [True, False])
def test_an_interval_that_is_too_wide_to_decide_is_mentioned(tmp_path, reached, low, high, interval):
    one = {**RESULT["evaluation"]["agent"], "low": low, "high": high}
    sentence = make_headline(make_run(tmp_path, reached=reached, evaluation={"agent": one})).sentence
    doubt = (
        f" The 95% interval of the evaluation, {interval}, does not decide whether the weights reach the goal; "
        "more than 3 evaluation episodes (goal.evaluation_episodes) make it narrower."
    )
    assert sentence.endswith(doubt) == bool(interval) and sentence.count("interval") == bool(interval)


def test_a_run_in_training_is_not_over(tmp_path, monkeypatch):
    monkeypatch.setattr(RunData, "in_training", True)
    outcome = make_headline(make_run(tmp_path, status=130))
    assert (outcome.kind, outcome.label) == (WAITING, "In training")


def test_each_role_has_its_returns(tmp_path):
    one = {**RESULT["evaluation"]["agent"], "low": None, "high": None, "episodes": 1}
    run = make_run(tmp_path, returns={"red": 1.0, "blue": None}, evaluation={"red": one, "blue": one})
    facts = [(fact.name, fact.value, fact.note) for fact in list_facts(run)]
    assert facts[:4] == [
        ("evaluation return, red", "479.7", "1 episode"),
        ("evaluation return, blue", "479.7", "1 episode"),
        ("training return, red", "1.000", "mean of the last episodes"),
        ("training return, blue", "-", "mean of the last episodes"),
    ]


def test_the_time_of_a_run_without_steps_has_no_speed(tmp_path):
    (time,) = (fact for fact in list_facts(make_run(tmp_path, seconds=0.0)) if fact.name == "time of training")
    assert (time.value, time.note) == ("0.0 s", "")


def test_spaces_of_every_kind():
    parts = (
        ActionPart(key="gear", shape=(), dtype="int64", n_values=(3,)),
        ActionPart(key="throttle", shape=(2,), dtype="float32", low=(-1.0, 0.0), high=(1.0, 2.0)),
    )
    specs = {
        "picture": ObsSpec((3, 8, 8), "uint8", high=255.0),
        "place": ObsSpec((7,), n_values=(3, 4)),
    }
    role = Role(1, specs, ActionSpec.from_parts(parts))
    (table,) = list_spaces({"car": role})
    assert table.title == "car: 1 agent"
    assert table.rows == [
        ["observation", "picture", "3 x 8 x 8", "uint8", "0 to 255"],
        ["observation", "place", "7", "float32", "one of 3 x 4, one-hot"],
        ["action", "gear", "scalar", "int64", "one of 3"],
        ["action", "throttle", "2", "float32", "-1 to 2"],
    ]
    (table,) = list_spaces({"agent": make_role(4)})
    assert table.title == "4 agents" and table.rows[-1][0] == "action"


def test_the_newest_evaluations_are_listed(tmp_path):
    lines = [f"{k},{k / 2}" for k in range(1, 16)]
    (tmp_path / "metrics.csv").write_text("\n".join(["env_steps,eval/return/red", *lines, ""]))
    text = PageReader(make_report(read_run(tmp_path))).text
    assert "red env steps mean return 4 2.000 5 2.500" in text and "15 7.500 3 older rows are left out." in text


def test_properties_that_are_not_known_are_left_out(tmp_path):
    run = read_run(tmp_path)
    assert list_machine(run) == [] and list_versions(run) == []
    assert "Processes that have trained" not in make_report(run)
    session = {"env_steps": 0, "machine": {"cores": 2, "processor": None, "memory": None}, "versions": {"torch": "2"}}
    run.sessions, run.record = [session], {**run.record, "seed": 0}
    assert list_machine(run) == [("cores", "2")]
    assert list_versions(run) == [("torch", "2"), ("seed", "0")]
    assert "started processor commit from env step to - - - 0 0" in PageReader(make_report(run)).text


def test_settings_of_other_runtimes_are_left_out(tmp_path):
    base = {"env_type": "GYM", "env_name": "A-v1", "n_envs": 2, "n_workers": 4, "env_args": {}}
    run = read_run(tmp_path)
    run.settings = {"base_config": {**base, "runtime": "RAY"}, "cluster_config": {"actors": 3}}
    shown = {"env_type": "GYM", "env_name": "A-v1", "n_envs": "2", "runtime": "RAY", "actors": "3"}
    assert dict(list_environment(run)) == shown
    run.settings = {"base_config": {**base, "runtime": "workers"}}
    assert dict(list_environment(run))["n_workers"] == "4"


def test_commands_quote_names_with_spaces(tmp_path):
    folder = tmp_path / "a b"
    folder.mkdir()
    commands = dict(list_commands(read_run(folder)))
    assert commands["resume it"].endswith("-n 'a b' --resume")
