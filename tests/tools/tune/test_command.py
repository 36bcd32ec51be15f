"""The command tune: trials, the best variant, interruption, failed trials, several processes."""

import json
from itertools import count
from pathlib import Path

import pytest

from algorithm.cli import main
from algorithm.config.yaml_layers import read_yaml
from algorithm.runs import build
from algorithm.tools.tune.study import Study
from algorithm.training.components import Diverged
from tests.task_folder import write_task

CONFIG = """# A probe.
default:
  base_config: {env_type: PROBE, suggest_settings: false, env_name: choice, max_step: 40, log_every: 40, n_envs: 2}
  acer_config: {rollout_length: 5, sequence_length: 5}
  tune:   # the space
    space:
      acer_config.learning_rate: {low: 1.0e-4, high: 3.0e-2, log: true}
      acer_config.gamma: {low: 0, high: 1}
goal:
  base_config: {max_step: 60}
  goal: {return: 0.1}
  tune: {objective: env_steps, seeds: 2}
"""
FOLDER, STUDY = Path("envs/mine/task"), Path("runs/mine/task/tune")


@pytest.fixture(autouse=True)
def task():
    """Create the folder mine/task."""
    write_task(CONFIG)


def call(command, capsys, status=0):
    """Return the JSON that a command prints, and its lines for people."""
    assert main.main([*command.split(), "--json"]) == status
    printed = capsys.readouterr()
    return json.loads(printed.out), printed.err


def variants():
    """Return the variants of the folder."""
    return read_yaml(FOLDER / "config.yaml")


def test_a_search_writes_its_best_settings_as_a_variant_and_continues(capsys):
    record, lines = call("tune mine/task --trials 3 --set base_config.n_envs=1 --seed 2", capsys)
    assert [trial["state"] for trial in record["trials"]] == ["complete"] * 3
    assert (record["study"], record["variant"]) == (STUDY.as_posix(), "tuned")
    best = record["trials"][record["best"]]
    assert best["value"] == max(trial["value"] for trial in record["trials"])
    assert lines.count("best: trial") == 3
    rate, gamma = best["settings"]["acer_config.learning_rate"], best["settings"]["acer_config.gamma"]
    tuned = {"base_config": {"n_envs": 1, "seed": 2}, "acer_config": {"learning_rate": rate, "gamma": gamma}}
    assert variants()["tuned"] == tuned
    assert (FOLDER / "config.yaml").read_text().startswith(CONFIG)
    kept = [path.parent.parent.name for path in STUDY.glob("*/seed-2/checkpoints")]
    assert kept == [str(record["best"])]  # the others are removed
    # The variant exists, so that continuing needs --force or another name.
    again = "tune mine/task --trials 4 --set base_config.n_envs=1 --seed 2"
    record, lines = call(again, capsys, status=2)
    assert "the variant 'tuned' exists already; --force replaces it, --save-as gives" in lines
    record, lines = call(f"{again} --save-as other", capsys)
    assert len(record["trials"]) == 4 and lines.count("best: trial") == 1
    assert set(variants()) == {"default", "goal", "tuned", "other"}
    record, lines = call("tune mine/task --trials 5 --force", capsys, status=2)
    assert "the study tune has base_config.n_envs=1, not 2" in lines


def test_env_steps_to_the_goal_with_several_seeds_equal_those_of_the_variant(capsys):
    record, _ = call("tune mine/task -c goal --trials 1", capsys)
    assert (record["study"], record["variant"]) == ("runs/mine/task/tune_goal", "tuned_goal")
    assert variants()["tuned_goal"]["inherit"] == "goal"
    steps = [call(f"mine/task -c tuned_goal -n s{seed} --seed {seed}", capsys)[0]["env_steps"] for seed in (0, 1)]
    assert record["trials"][0]["value"] == sum(steps) / 2


def test_no_variant_is_written_if_no_trial_reaches_the_goal(capsys):
    assert main.main("tune mine/task -c goal --trials 1 --set goal.return=2 tune.seeds=1".split()) == 2
    printed = capsys.readouterr()
    assert "trial 0: 120.0 env steps (goal not reached)" in printed.out
    assert "reached the goal: no variant is written; set a larger base_config.max_step" in printed.err
    assert (FOLDER / "config.yaml").read_text() == CONFIG


def test_an_interrupted_search_keeps_its_finished_trials_and_continues(capsys, monkeypatch):
    finish = Study.finish

    def finish_and_interrupt(self, *arguments):
        if len(self.list_trials()) == 2:
            raise KeyboardInterrupt
        finish(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Study, "finish", finish_and_interrupt)
        record, lines = call("tune mine/task --trials 3", capsys, status=130)
    assert [trial["state"] for trial in record["trials"]] == ["complete", "running"]
    assert lines.splitlines()[-1] == (
        "Interrupted. Finished trials (1) are kept in runs/mine/task/tune; continue with the same command."
    )
    assert "tuned" not in variants()
    again, _ = call("tune mine/task --trials 3", capsys)
    assert [trial["state"] for trial in again["trials"]] == ["complete"] * 3
    first, interrupted = record["trials"]
    assert again["trials"][:2] == [first, {**again["trials"][1], "settings": interrupted["settings"]}]


def test_a_pruned_trial_ends_early(capsys, monkeypatch):
    monkeypatch.setattr("optuna.trial.Trial.should_prune", lambda trial: trial.number == 0)
    record, lines = call("tune mine/task --trials 2", capsys)
    assert [trial["state"] for trial in record["trials"]] == ["pruned", "complete"]
    assert record["trials"][0]["reason"] == "pruned at 4 env steps"
    assert "trial 0: pruned at 4 env steps\n" in lines and record["best"] == 1


def test_a_config_that_cannot_be_changed_is_an_error_and_the_variant_is_printed(capsys):
    (FOLDER / "config.yaml").write_text(json.dumps(read_yaml(FOLDER / "config.yaml")))
    record, lines = call("tune mine/task --trials 1", capsys, status=2)
    assert "a variant cannot be added to a file in this style" in record["error"]
    assert "the best settings:\n# " in lines and "\ntuned:\n  acer_config:\n    learning_rate: " in lines


@pytest.mark.parametrize("fails", [(0,), (0, 1, 2)])
def test_a_trial_that_fails_is_pruned_and_only_trials_that_all_fail_end_a_search(fails, capsys, monkeypatch):
    calls = count()

    def train_or_diverge(*arguments):
        if next(calls) in fails:
            raise Diverged("learning diverged: 100 updates")
        return build.train(*arguments)

    monkeypatch.setattr("algorithm.api.train_in_folder", train_or_diverge)
    record, lines = call("tune mine/task --trials 4", capsys, status=4 if len(fails) == 3 else 0)
    states = [trial["state"] for trial in record["trials"]]
    assert states == ["pruned"] * len(fails) + ["complete"] * (3 if len(fails) == 1 else 0)
    assert record["trials"][0]["reason"] == "learning diverged: 100 updates"
    assert ("the search ends: its first 3 trials have failed" in lines) == (len(fails) == 3)


def test_a_space_that_cannot_be_searched_leaves_no_study(capsys):
    without_spaces = "tune.space.acer_config.gamma={low:0,high:1}"
    _, lines = call(f"tune mine/task --set {without_spaces}", capsys, status=2)
    assert "--set: tune.space: unknown setting acer_config.gamma.low:0" in lines
    (FOLDER / "config.yaml").write_text(CONFIG.replace("high: 1}", "high: 2}"))
    _, lines = call("tune mine/task", capsys, status=2)
    assert lines.splitlines()[-1] == (
        "envs/mine/task/config.yaml: tune.space: acer_config.gamma is 2.0; it must be from 0 to 1"
    )
    assert not STUDY.exists()


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("tune mine/task --trials 0", "--trials: it is 0; it must be at least 1"),
        ("tune mine/task --save-as default", "--save-as default: the best settings are a variant of default"),
        ("tune mine/task --save-as a/b", "--save-as 'a/b': use a plain name"),
        ("tune mine/task -n a/b", "run name 'a/b': use a plain folder name"),
        ("mine/task --set tune.seeds=2", "--set: tune has no effect without the command tune"),
    ],
)
def test_options_that_do_not_fit_are_an_error(command, error, capsys):
    assert error in call(command, capsys, status=2)[1]


def test_the_last_process_of_a_study_writes_the_variant(capsys):
    """The other process of the study is this one, which holds a trial."""
    call("tune mine/task --trials 1", capsys)
    with Study(STUDY.absolute(), True, 0).take_trial(2):
        record, lines = call("tune mine/task --trials 2 --save-as last", capsys)
    assert [trial["state"] for trial in record["trials"]] == ["complete", "running"] and record["variant"] is None
    assert "1 of 2 trials are not finished: the last process of the study writes the variant last" in lines
    assert "last" not in variants()
    record, _ = call("tune mine/task --trials 2 --save-as last", capsys)
    assert [trial["state"] for trial in record["trials"]] == ["complete"] * 2
    assert record["variant"] == "last" and "last" in variants()
