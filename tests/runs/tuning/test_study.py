"""A study folder: its trials, their locks, and several processes that share it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from algorithm.errors import UserError
from algorithm.runs.tuning import study as module
from algorithm.runs.tuning.study import Study

ROOT = Path(__file__).resolve().parents[3]
LIMIT = 12
JOIN = f"""
import sys, time
from pathlib import Path
from algorithm.runs.tuning.study import Study
study = Study(Path("study"), False, 0)
print("joined", flush=True)
sys.stdin.readline()
while (trial := study.take_trial({LIMIT})) is not None:
    with trial.lock:
        while len(study.list_trials()) < 2:  # until the other process has a trial, too
            time.sleep(0.01)
        x = trial.trial.suggest_float("x", 0.0, 1.0)
        trial.record_values({{"x": x, "process": sys.argv[1]}})
        study.finish(trial, (x - 0.5) ** 2, "")
"""


def run(study, limit, value=lambda x: x):
    """Finish trials with the value of a function of one number, until there are `limit`."""
    while (trial := study.take_trial(limit)) is not None:
        with trial.lock:
            x = trial.trial.suggest_float("x", 0.0, 1.0)
            trial.record_values({"x": x})
            study.finish(trial, value(x), "")


def test_a_study_samples_finishes_and_ranks_trials():
    study = Study(Path("study"), maximize=False, seed=0)
    run(study, 8)
    trials = study.list_trials()
    assert [trial.number for trial in trials] == list(range(8))
    assert {trial.state for trial in trials} == {"complete"}
    assert [trial.value for trial in trials] == [trial.values["x"] for trial in trials]
    assert study.find_best().value == min(trial.value for trial in trials)
    assert sorted(trials, key=study.make_rank)[0] == study.find_best()
    assert study.take_trial(8) is None


def test_a_study_that_maximizes_has_the_largest_value_as_its_best():
    study = Study(Path("study"), maximize=True, seed=0)
    run(study, 4)
    assert study.find_best().value == max(trial.value for trial in study.list_trials())


def test_samples_follow_from_the_seed_and_the_number_of_the_trial():
    def sample(name, seed, *limits):
        for limit in limits:  # each time as another process would
            run(Study(Path(name), False, seed), limit)
        return [trial.values["x"] for trial in Study(Path(name), False, seed).list_trials()]

    whole = sample("a", 0, 14)  # more trials than the ten that are sampled at random
    assert sample("b", 0, 3, 11, 14) == whole
    assert sample("c", 1, 3) != whole[:3]


def test_an_interrupted_trial_is_trained_again_with_the_same_settings():
    study = Study(Path("study"), False, 0)
    run(study, 2)
    trial = study.take_trial(9)
    x = trial.trial.suggest_float("x", 0.0, 1.0)
    assert Study(Path("study"), False, 0).take_trial(3) is None  # its lock is held
    trial.lock.close()
    assert study.list_trials()[2].state == "running"
    again = Study(Path("study"), False, 0).take_trial(3)
    with again.lock:
        assert (again.number, again.trial.suggest_float("x", 0.0, 1.0)) == (2, x)
        study.finish(again, 0.5, "")
    assert [trial.state for trial in study.list_trials()] == ["complete"] * 3


def test_a_trial_that_is_interrupted_before_its_sample_has_the_sample_of_its_number():
    study, other = Study(Path("a"), False, 0), Study(Path("b"), False, 0)
    study.take_trial(1).lock.close()
    for each in (study, other):
        run(each, 1)
    assert study.list_trials()[0].values == other.list_trials()[0].values


def test_a_pruned_trial_has_a_reason_and_no_value():
    study = Study(Path("study"), False, 0)
    trial = study.take_trial(1)
    with trial.lock:
        study.finish(trial, None, "diverged")
    (record,) = study.list_trials()
    assert (record.state, record.value, record.reason) == ("pruned", None, "diverged")
    assert study.find_best() is None and study.take_trial(1) is None


def test_a_study_with_other_settings_is_an_error_that_names_them():
    study = Study(Path("study"), False, 0)
    study.check_settings({"a": {"b": (1, 2), "c": 3}})
    study.check_settings({"a": {"b": [1, 2], "c": 3}})
    with pytest.raises(UserError, match=r"^the study study has a.c=3, not 4: .* -n NAME begins another study$"):
        study.check_settings({"a": {"b": [1, 2], "c": 4}})


def test_two_processes_share_the_trials():
    """Each trial is sampled and finished by one of the processes, and their number is exact."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", JOIN, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        for name in "ab"
    ]
    for process in processes:
        assert process.stdout.readline() == "joined\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [process.wait(60) for process in processes] == [0, 0]
    trials = Study(Path("study"), False, 0).list_trials()
    assert [trial.number for trial in trials] == list(range(LIMIT))
    assert {trial.state for trial in trials} == {"complete"}
    assert len({trial.values["x"] for trial in trials}) == LIMIT
    assert {trial.values["process"] for trial in trials} == {"a", "b"}


def environment():
    """Return the environment variables of a process that imports this checkout."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def test_without_optuna_one_line_names_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"--tune needs the extra tune \(.*\): pip install .*\[tune\]"):
        module.import_optuna()
