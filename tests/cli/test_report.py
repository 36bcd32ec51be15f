import shlex
from functools import partial
from types import SimpleNamespace

import pytest

from algorithm.checkpointing.store import CheckpointStore
from algorithm.checkpointing.writer import CheckpointWriter, write_all
from algorithm.cli import report as module
from algorithm.cli.report import report_result
from algorithm.config.loader import resolve
from algorithm.runs.callbacks import RunResult
from algorithm.runs.run_folder import RunFolder
from algorithm.training.components import TrainingComponents
from algorithm.training.evaluator import EvaluationResult
from algorithm.training.history import Counters

PLAYED = EvaluationResult([480.0, 500.0] * 10, [1] * 20)


@pytest.fixture
def folder(tmp_path):
    source = tmp_path / "envs" / "some" / "task"
    source.mkdir(parents=True)
    return RunFolder.create("some/task", source, "my run", resolve([]).tree)


def told(folder, monkeypatch=None, **changes) -> list[str]:
    values = {
        "goal_reached": True,
        "counters": Counters(env_steps=18_040, updates=900, episodes=312, iterations=100, seconds=6.1),
        "returns": {"agent": 478.25},
        "evaluation": {"agent": PLAYED},
        "best": None,
    }
    said = []
    report_result(said.append, "some/task", folder, RunResult(**{"folder": folder.path, **values, **changes}))
    return said


@pytest.mark.parametrize(
    ("reached", "words"),
    [(True, "goal reached and confirmed"), (False, "goal not reached within"), (None, "done after")],
)
def test_the_result_stands_first(folder, reached, words):
    said = told(folder, goal_reached=reached)
    assert said[0].startswith(words)
    assert said[0].endswith("18,040 env steps, 312 episodes, 6.1 s")
    assert said[1] == "mean return of the last training episodes: 478.2"
    assert said[2] == f"last evaluation: {PLAYED}" and "95% interval" in said[2] and said[2].endswith("greedy")


def test_the_commands_can_be_typed_as_they_stand(folder, monkeypatch):
    monkeypatch.setattr(module.os, "name", "posix")
    said = told(folder)
    commands = {line.split(":", 1)[0]: shlex.split(line.split(":", 1)[1]) for line in said[3:]}
    run = ["python", "main.py", "some/task", "-n", "my run"]
    assert commands["play it"] == [*run, "--run"]
    assert commands["resume"] == [*run, "--resume"]
    assert commands["curves"] == ["tensorboard", "--logdir", str(folder)]
    assert f"run folder: {folder}" in said


def test_windows_quotes_in_its_own_way(monkeypatch):
    monkeypatch.setattr(module.os, "name", "nt")
    assert module._join_command("a", "b c") == 'a "b c"'


def test_weights_that_did_better_than_the_last_ones_are_named(folder):
    store, actor = CheckpointStore(folder.path / "checkpoints", 5), SimpleNamespace(state=lambda: None)
    writer = CheckpointWriter(store, partial(write_all, TrainingComponents(None, None), actor), {}, print)
    checkpoint = writer.write(Counters(env_steps=12_000))
    assert "best in evaluation, used by --run: the weights after 12,000 env steps" in told(folder, best=checkpoint)
    assert not any("best" in line for line in told(folder, best=checkpoint, counters=Counters(env_steps=12_000)))


def test_roles_are_named_where_there_are_several(folder):
    said = told(folder, returns={"left": 1.0, "right": 2.0}, evaluation={"left": PLAYED, "right": PLAYED})
    assert "mean return of right of the last training episodes: 2.000" in said
    assert f"last evaluation of left: {PLAYED}" in said


def test_a_return_is_never_nan_and_small_ones_keep_their_digits(folder):
    said = told(folder, returns={"agent": float("nan")}, evaluation=None)
    assert "mean return of the last training episodes: no episode has ended yet" in said
    assert not any("nan" in line.split() for line in said)
    assert "mean return of the last training episodes: 0.955" in told(folder, returns={"agent": 0.955})
