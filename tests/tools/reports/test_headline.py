"""The headline of a run: its outcome in words, and its numbers."""

from __future__ import annotations

import pytest

from algorithm.tools.reports.run_data import RunData, read_run
from algorithm.tools.reports.run_summary import BAD, GOOD, WAITING, list_facts, make_headline
from tests.tools.reports.run_folders import RESULT


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
