"""What a command prints: lines in a terminal, and the result of a run with the commands that continue from it."""

import os
import pty
import shlex
import subprocess
import sys

import pytest

from algorithm import program
from algorithm.checkpointing.store import CheckpointStore
from algorithm.cli.output import wrap_words
from algorithm.cli.training import report_result
from algorithm.config.loader import resolve
from algorithm.parts.run_folder import RunFolder
from algorithm.runs.callbacks import RunResult
from algorithm.training.evaluator import EvaluationResult
from algorithm.training.progress import Counters
from tests.checkpointing.test_store import save

COMMAND = "python main.py gym/cartpole -n first --resume"


@pytest.mark.parametrize(
    ("line", "width", "lines"),
    [
        ("goal reached after 12 steps", None, ["goal reached after 12 steps"]),
        ("goal reached after 12 steps", 27, ["goal reached after 12 steps"]),
        ("goal reached after 12 steps", 26, ["goal reached after 12", "steps"]),
        ("curve:      runs/a/b/curve.png", 20, ["curve:", "runs/a/b/curve.png"]),
        ("curve:      runs/a/b/curve.png now", 10, ["curve:", "runs/a/b/curve.png", "now"]),
        (f"saved; resume with: {COMMAND}", 30, ["saved; resume with:", COMMAND]),
        (f"saved in runs/a; resume with: {COMMAND}", 20, ["saved in runs/a;", "resume with:", COMMAND]),
        ("", 5, [""]),
    ],
)
def test_words_and_commands_are_not_broken(line, width, lines, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["main.py"])
    assert wrap_words(line, width).split("\n") == lines


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo terminal")
@pytest.mark.parametrize("call", ["output.log(text)", "output.fail(text, ValueError(), False)"])
def test_a_terminal_gets_whole_words_and_a_log_file_the_whole_line(call, tmp_path):
    text = "the evaluation at 1,000 env steps has a mean return of 12.5 over 20 episodes"
    program = f"""
from pathlib import Path
from algorithm.cli.output import Output
output, text = Output(False), {text!r}
output.log_to_file(Path("log.txt"))
{call}
"""
    terminal, end = pty.openpty()
    variables = {**os.environ, "COLUMNS": "40", "TERM": "xterm", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=variables, stdout=end, stderr=end, check=True)
    os.close(end)
    written = os.read(terminal, 65536).decode().splitlines()
    os.close(terminal)
    assert written == ["the evaluation at 1,000 env steps has a", "mean return of 12.5 over 20 episodes"]
    assert text in (tmp_path / "log.txt").read_text()


PLAYED = EvaluationResult([480.0, 500.0] * 10, [1] * 20)


@pytest.fixture
def folder(tmp_path):
    source = tmp_path / "envs" / "some" / "task"
    source.mkdir(parents=True)
    return RunFolder.create("some/task", source, "my run", resolve([]).tree)


def report_lines(folder, **changes) -> list[str]:
    values = {
        "goal_reached": True,
        "counters": Counters(env_steps=18_040, updates=900, episodes=312, iterations=100, seconds=6.1),
        "returns": {"agent": 478.25},
        "evaluation": {"agent": PLAYED},
        "best": None,
    }
    lines = []
    report_result(lines.append, "some/task", folder, RunResult(**{"folder": folder.path, **values, **changes}))
    return lines


@pytest.mark.parametrize(
    ("reached", "words"),
    [(True, "goal reached and confirmed"), (False, "goal not reached within"), (None, "done after")],
)
def test_the_result_is_the_first_line(folder, reached, words):
    lines = report_lines(folder, goal_reached=reached)
    assert lines[0].startswith(words)
    assert lines[0].endswith("18,040 env steps, 312 episodes, 6.1 s")
    assert lines[1] == "mean return of the last training episodes: 478.2"
    assert lines[2] == f"last evaluation: {PLAYED}" and "95% interval" in lines[2] and lines[2].endswith("greedy")


def test_the_printed_commands_can_be_executed(folder, monkeypatch):
    monkeypatch.setattr(program.os, "name", "posix")
    lines = report_lines(folder)
    commands = {line.split(":", 1)[0]: shlex.split(line.split(":", 1)[1]) for line in lines[3:]}
    run = ["python", "main.py", "some/task", "-n", "my run"]
    assert commands["play it"] == [*run, "--run"]
    assert commands["resume"] == [*run, "--resume"]
    assert commands["curves"] == ["tensorboard", "--logdir", str(folder)]
    assert f"run folder: {folder}" in lines


def test_better_weights_than_the_last_ones_are_named(folder):
    saved = save(CheckpointStore(folder.path / "checkpoints", 5), 12_000)
    assert "best in evaluation, used by --run: the weights after 12,000 env steps" in report_lines(folder, best=saved)
    assert not any("best" in line for line in report_lines(folder, best=saved, counters=saved.counters))


def test_several_roles_are_named(folder):
    lines = report_lines(folder, returns={"left": 1.0, "right": 2.0}, evaluation={"left": PLAYED, "right": PLAYED})
    assert "mean return of right of the last training episodes: 2.000" in lines
    assert f"last evaluation of left: {PLAYED}" in lines


def test_a_return_is_never_nan_and_small_returns_keep_their_digits(folder):
    lines = report_lines(folder, returns={"agent": float("nan")}, evaluation=None)
    assert "mean return of the last training episodes: no episode has ended yet" in lines
    assert not any("nan" in line.split() for line in lines)
    assert "mean return of the last training episodes: 0.955" in report_lines(folder, returns={"agent": 0.955})
