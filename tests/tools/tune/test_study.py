"""A study folder: its trials, their locks, and several processes that share it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from algorithm.errors import UserError
from algorithm.tools.tune import study as module
from algorithm.tools.tune.study import Study

VARIABLES = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3]), "PYTHONUNBUFFERED": "1"}
LIMIT = 12
JOIN = f"""
import sys, time
from pathlib import Path
from algorithm.tools.tune.study import Study
study = Study(Path("study"), False, 0)
print("joined", flush=True)
sys.stdin.readline()
trial = True
while trial:
    with study.take_trial({LIMIT}) as trial:
        while trial and len(study.list_trials()) < 2:  # until the other process has a trial, too
            time.sleep(0.01)
        if trial:
            x = trial.suggest_float("x", 0.0, 1.0)
            trial.set_user_attr("values", {{"x": x, "process": sys.argv[1]}})
            study.finish(trial, (x - 0.5) ** 2, "")
"""


def run(study, limit, value=lambda x: x):
    """Finish trials with the value of a function of one number, until there are `limit`."""
    while finish_one(study, limit, value) is not None:
        pass


def finish_one(study, limit, value=lambda x: x):
    """Finish a trial with the value of a function of one number, and return the number; None if there is no trial."""
    with study.take_trial(limit) as trial:
        if trial is None:
            return None
        x = trial.suggest_float("x", 0.0, 1.0)
        trial.set_user_attr("values", {"x": x})
        study.finish(trial, value(x), "")
        return x


def test_a_study_samples_finishes_and_ranks_trials():
    study = Study(Path("study"), maximize=False, seed=0)
    run(study, 8)
    trials = study.list_trials()
    assert [trial.number for trial in trials] == list(range(8))
    assert {trial.state for trial in trials} == {"complete"}
    assert [trial.value for trial in trials] == [trial.settings["x"] for trial in trials]
    ranked = sorted(trials, key=lambda trial: trial.value)
    assert study.rank(trials) == ranked
    study.maximize = True
    assert study.rank(trials) == ranked[::-1]


def test_samples_follow_from_the_seed_and_the_number_of_the_trial():
    def sample(name, seed, *limits):
        for limit in limits:  # each time as another process would
            run(Study(Path(name), False, seed), limit)
        return [trial.settings["x"] for trial in Study(Path(name), False, seed).list_trials()]

    whole = sample("a", 0, 14)  # more trials than the ten that are sampled at random
    assert sample("b", 0, 3, 11, 14) == whole
    assert sample("c", 1, 3) != whole[:3]


def test_an_interrupted_trial_is_trained_again_with_the_same_settings():
    study = Study(Path("study"), False, 0)
    run(study, 2)
    with study.take_trial(9) as trial:
        x = trial.suggest_float("x", 0.0, 1.0)
        assert finish_one(Study(Path("study"), False, 0), 3) is None  # its lock is held
    assert study.list_trials()[2].state == "running"
    assert finish_one(Study(Path("study"), False, 0), 3) == x
    assert [trial.state for trial in study.list_trials()] == ["complete"] * 3


def test_a_trial_that_is_interrupted_before_its_sample_has_the_sample_of_its_number():
    study, other = Study(Path("a"), False, 0), Study(Path("b"), False, 0)
    with study.take_trial(1):
        pass
    for each in (study, other):
        run(each, 1)
    assert study.list_trials()[0].settings == other.list_trials()[0].settings


def test_a_pruned_trial_has_a_reason_and_no_value():
    study = Study(Path("study"), False, 0)
    with study.take_trial(1) as trial:
        study.finish(trial, None, "diverged")
    (record,) = study.list_trials()
    assert (record.state, record.value, record.reason) == ("pruned", None, "diverged")
    assert study.rank([record]) == [] and finish_one(study, 1) is None


def test_a_study_with_other_settings_is_an_error_that_names_them():
    study = Study(Path("study"), False, 0)
    study.check_settings({"a": {"b": (1, 2), "c": 3}})
    study.check_settings({"a": {"b": [1, 2], "c": 3}})
    with pytest.raises(UserError, match=r"^the study study has a.c=3, not 4: .* -n NAME begins another study$"):
        study.check_settings({"a": {"b": [1, 2], "c": 4}})


def test_two_processes_share_the_trials():
    """Each trial is sampled and finished by one of the processes, and their number is exact."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": VARIABLES}
    processes = [subprocess.Popen([sys.executable, "-c", JOIN, name], **pipes) for name in "ab"]
    for process in processes:
        assert process.stdout.readline() == "joined\n"
    for process in processes:
        process.stdin.close()  # they begin
    assert [process.wait(60) for process in processes] == [0, 0]
    trials = Study(Path("study"), False, 0).list_trials()
    assert [trial.number for trial in trials] == list(range(LIMIT))
    assert {trial.state for trial in trials} == {"complete"}
    assert len({trial.settings["x"] for trial in trials}) == LIMIT
    assert {trial.settings["process"] for trial in trials} == {"a", "b"}


def test_without_optuna_one_line_names_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"tune needs the extra tune \(.*\): pip install .*\[tune\]"):
        module.import_optuna()


def list_finished(study):
    return [(trial.state, trial.value, trial.settings, trial.reason) for trial in study.list_trials()]


@pytest.fixture(scope="module")
def journal(tmp_path_factory):
    """The journal of a study of five trials, of which the first was pruned, and its trials."""
    folder = tmp_path_factory.mktemp("journal") / "study"
    study = Study(folder, maximize=False, seed=0)
    run(study, 5, lambda x: x if study.list_trials()[1:] else None)
    return (folder / "journal.log").read_bytes(), list_finished(study)


def open_damaged(content):
    """Return a study with this journal and the lines that it logs."""
    lines, folder = [], Path("study")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "journal.log").write_bytes(content)
    return Study(folder, maximize=False, seed=0, log=lines.append), lines


def test_a_journal_without_damage_is_left_as_it_is(journal):
    content, trials = journal
    study, lines = open_damaged(content)
    assert list_finished(study) == trials and lines == []
    assert (study.folder / "journal.log").read_bytes().startswith(content) and len(trials) == 5


def test_finished_trials_are_kept_if_the_end_of_the_journal_is_missing(journal):
    content, trials = journal
    for missing in (*range(1, 300, 23), len(content) - 1):
        study, lines = open_damaged(content[:-missing])
        at_line_end = content[:-missing].endswith(b"\n")
        assert len(lines) == (not at_line_end) and all("journal.log" in line for line in lines), missing
        finished = [each for each in list_finished(study) if each[0] != "running"]
        assert finished == trials[: len(finished)] and len(finished) >= (3 if missing < 300 else 0)
        again = []
        assert list_finished(Study(study.folder, False, 0, log=again.append)) == list_finished(study) and not again
        run(study, 5)  # the trial that lost its end is trained again
        assert len(list_finished(study)) == 5 and all(state != "running" for state, *_ in list_finished(study))


@pytest.mark.parametrize("number", range(12))
def test_every_line_may_be_lost(journal, number):
    content, trials = journal
    lines = content.splitlines(keepends=True)
    lines[number] = b"#\xff\n"
    study, logged = open_damaged(b"".join(lines))
    assert len(logged) == 1 and "damaged-journal.log is a copy as it was" in logged[0]
    found = list_finished(study)
    assert len(found) == 5 and sum(each in trials for each in found) >= 4


def test_changed_bits_never_stop_a_study(journal):
    content, trials = journal
    rng = np.random.default_rng(3)
    for place, bit in zip(rng.integers(len(content), size=60), rng.integers(8, size=60), strict=True):
        study, logged = open_damaged(content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :])
        found = list_finished(study)
        assert len(logged) <= 1 and sum(each in found for each in trials) >= 4, place
        study.rank(study.list_trials())
        with study.take_trial(99):
            pass


def test_a_process_that_was_killed_leaves_no_lock_and_its_trial_is_trained_again():
    study = Study(Path("study"), False, 0)
    (study.folder / "journal.log.lock").touch()  # Optuna's own lock, which is not used
    hold = "from pathlib import Path; from algorithm.tools.tune.study import Study; import os; "
    hold += "study = Study(Path('study'), False, 0); trial = study.take_trial(9).__enter__(); "
    hold += "print(trial.suggest_float('x', 0.0, 1.0)); study.lock.acquire(); os.kill(os.getpid(), 9)"
    killed = subprocess.run([sys.executable, "-c", hold], env=VARIABLES, stdout=subprocess.PIPE, check=False)
    assert killed.returncode == -9 and [trial.state for trial in study.list_trials()] == ["running"]
    assert finish_one(study, 1) == float(killed.stdout)
    assert [trial.state for trial in study.list_trials()] == ["complete"]
