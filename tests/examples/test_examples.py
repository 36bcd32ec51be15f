"""The examples run, learn something, and use what they claim to use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import yaml
from nbclient import NotebookClient

from algorithm import load
from algorithm.cli import main

ROOT = Path(__file__).resolve().parents[2]
MODULES = ("awr", "estimator", "grid_adapter")


def run_example(module: str, max_step: int) -> tuple[Path, dict]:
    """Run an example in a process, since it may add entries to tables; return folder and settings of its run."""
    code = f"from examples.{module} import run; print(run({max_step}).folder)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.splitlines()[-1])
    return folder, yaml.safe_load((folder / "config.yaml").read_text())


def test_every_example_is_run():
    scripts = {path.stem for path in (ROOT / "examples").glob("*.py")}
    folders = {path.parent.name for path in (ROOT / "examples").glob("*/config.yaml")}
    assert scripts == set(MODULES) and folders == {"fourier_encoder", "grid", "td3"}


@pytest.mark.parametrize("module", MODULES)
def test_an_example_runs(module):
    folder, settings = run_example(module, 400)
    assert (folder / "result.json").is_file()
    used = {
        "awr": (settings["base_config"]["algorithm"], "examples.awr:AWR"),
        "estimator": (settings["acer_config"]["estimator"], "importance_sampling"),
        "grid_adapter": (settings["base_config"]["env_type"], "examples.grid_adapter:GridAdapter"),
    }
    assert used[module][0] == used[module][1]
    if module == "awr":
        assert settings["awr_config"]["gamma"] == 0.98 and settings["awr_config"]["max_grad_norm"] == 0.5


def test_the_notebook_runs():
    notebook = nbformat.read(ROOT / "examples" / "quickstart.ipynb", nbformat.NO_CONVERT)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()  # raises the error of a cell
    shown = [output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ())]
    assert any("goal reached: True" in text for text in shown)
    assert list(Path("runs/gym/cartpole").glob("quickstart_*/result.json"))


def test_the_example_of_an_encoder_trains_and_plays(capsys):
    name = str(ROOT / "examples" / "fourier_encoder")
    assert main.main([name, "-n", "a", "--max-step", "400"]) == 0
    agent = load("runs/examples/fourier_encoder/a").agent
    assert "projection" in str([name for name, _ in agent.policy.named_parameters()])
    assert main.main([name, "-n", "a", "--run", "--max_iter", "1"]) == 0


AWR = "base_config.algorithm=examples.awr:AWR"


def test_an_agent_of_a_module_is_trained_resumed_and_exported(capsys):
    words = ["gym/cartpole", "-n", "a", "--max-step", "300", "--set", AWR, "awr_config.rollout_length=8"]
    assert main.main([*words, "goal=null"]) == 0
    assert main.main(["gym/cartpole", "-n", "a", "--resume", "--max-step", "500"]) == 0
    assert load("runs/gym/cartpole/a").agent.settings.rollout_length == 8
    assert main.main(["gym/cartpole", "-n", "a", "--run"]) == 0
    assert main.main(["gym/pendulum", "-n", "b", "--max-step", "300", "--set", AWR, "goal=null"]) == 0  # continuous


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([AWR, "awr_config.gama=1"], "did you mean awr_config.gamma?"),
        ([AWR, "awr_config.gamma=much"], "awr_config.gamma is 'much'"),
        (["awr_config.gamma=1"], "awr_config"),
        (["base_config.algorithm=examples.awr:None"], "algorithm 'examples.awr:None' cannot be imported"),
        (["base_config.algorithm=examples.none:AWR"], "No module named 'examples.none'"),
        (["base_config.algorithm=:AWR"], "algorithm ':AWR' cannot be imported"),
        (["base_config.env_type=examples.none:Grid"], "env_type 'examples.none:Grid' cannot be imported"),
    ],
)
def test_mistakes_are_one_line(capsys, words, message):
    assert main.main(["gym/cartpole", "--set", *words]) == 2
    shown = capsys.readouterr().err
    assert message in shown and shown.count("\n") == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("module", "steps", "least"), [("awr", 60_000, 150), ("grid_adapter", 20_000, 0.9)])
def test_an_example_learns(module, steps, least):
    folder, _ = run_example(module, steps)
    evaluation = yaml.safe_load((folder / "result.json").read_text())["evaluation"]
    assert evaluation["agent"]["mean"] >= least
