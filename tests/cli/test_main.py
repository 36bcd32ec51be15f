"""Whole commands, as a user types them."""

import builtins
import csv
import gc
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from algorithm import api, load
from algorithm.adapters.adapter import EnvironmentCrashed, EnvironmentStartError
from algorithm.checkpointing.checkpoint import Checkpoint
from algorithm.config import registry
from algorithm.parts.run_folder import RunFolder
from algorithm.runs.faults import STATUSES, describe_end
from algorithm.training.evaluator import Evaluator
from tests.command_line import train_once
from tests.task_folder import write_task

ROOT = Path(__file__).resolve().parents[2]
SHORT = "--set base_config.max_step=600 base_config.log_every=200 base_config.save_every=300"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of runs after the training of gym/cartpole/a."""
    return train_once(tmp_path_factory, f"gym/cartpole -n a {SHORT}") / "runs"


@pytest.fixture
def run(trained):
    """Return a copy of the run gym/cartpole/a."""
    shutil.copytree(trained, "runs")
    return RunFolder.find("gym/cartpole", "a")


@pytest.fixture
def played(monkeypatch):
    """The seed and the results of each evaluation."""
    found, play = [], Evaluator.play

    def record(evaluator, episodes, seed, *rest):
        found.append((seed, play(evaluator, episodes, seed, *rest)))
        return found[-1][1]

    monkeypatch.setattr(Evaluator, "play", record)
    return found


def start(*arguments: str) -> subprocess.CompletedProcess:
    """Run a command line in its own process."""
    return subprocess.run([sys.executable, ROOT / "main.py", *arguments], capture_output=True, text=True, timeout=100)


def test_training_then_playing(command):
    shown = command(f"gym/cartpole -n test_{{time}} {SHORT}").out
    folder = RunFolder.find("gym/cartpole", None)
    assert folder.path.name.startswith("test_2")
    for text in (
        "steps/s",
        "device: learning and acting on cpu (",
        "goal not reached within",
        f"run folder: {folder}",
        f"python main.py gym/cartpole -n {folder.path.name} --run",
        f"python main.py gym/cartpole -n {folder.path.name} --resume",
        f"tensorboard --logdir {folder}",
        "last evaluation: return",
        "95% interval",
    ):
        assert text in shown
    for name in ("config.yaml", "nn.py", "metrics.csv", "tensorboard", "checkpoints"):
        assert (folder.path / name).exists(), name
    assert (folder.path / "curve.png").exists() == ("curve" in registry.RUN_TOOLS)
    assert len(list((folder.path / "checkpoints").iterdir())) >= 2
    assert "rollout/return" in (folder.path / "metrics.csv").read_text().splitlines()[0]
    shown = command("gym/cartpole --run --disable_sample").out
    assert "return" in shown and "std" in shown and "length" in shown and "20 episodes, greedy" in shown


@pytest.mark.parametrize(
    ("greedy", "mode", "other"), [(True, "greedy", "sample"), (False, "sampled", "disable_sample")]
)
def test_playing_repeats_the_evaluation_of_the_best_weights(greedy, mode, other, command):
    changes = f"{SHORT} base_config.evaluate_every=150 base_config.evaluate_greedy={greedy}"
    evaluations = dict(re.findall(r"evaluation at (\d+) env steps: (.*)", command(f"gym/cartpole -n a {changes}").out))
    assert len(evaluations) > 2 and all(text.endswith(f"20 episodes, {mode}") for text in evaluations.values())
    best = str(RunFolder.find("gym/cartpole", "a").find_best().counters.env_steps)
    shown = command("gym/cartpole --run").out
    assert f"playing runs/gym/cartpole/a after {best} env steps, {mode}" in shown
    assert f"runs/gym/cartpole/a: {evaluations[best]}; std" in shown
    printed = command.json(f"gym/cartpole --run --{other}")
    assert printed["mode"] == {"sample": "sampled", "disable_sample": "greedy"}[other]
    assert evaluations[best] not in shown.replace(mode, printed["mode"])


def test_an_id_is_trained_and_its_runs_are_found_by_the_id(command):
    shown = command(f"CartPole-v1 -n a {SHORT}").out
    assert "tuned settings for CartPole-v1: python main.py gym/cartpole\n" in shown
    assert "play it:    python main.py CartPole-v1 -n a --run" in shown
    for line in ("{} --run --max_iter 1", "{} -n a --resume --max-step 700", "report {}", "export {}"):
        command(line.format("CartPole-v1"))
    assert "CartPole-v1/a" in command("list CartPole-v1").out
    assert (Path("runs/CartPole-v1/a") / "report.html").exists() and not Path("envs").exists()


def test_an_id_of_a_module_that_fails_before_learning_leaves_nothing(monkeypatch, command):
    monkeypatch.setattr(api, "train_in_folder", lambda *_, **__: 1 / 0)
    assert "training tests.adapters.spaced:Invalid-v0 with" in command("tests.adapters.spaced:Invalid-v0", 1).out
    assert not Path("runs").exists() or not list(Path("runs").iterdir())


def test_a_loaded_run_acts_greedily_or_with_samples(run):
    greedy = load("runs/gym/cartpole/a", disable_sample=True)
    assert len({int(greedy.act(np.zeros(4))) for _ in range(30)}) == 1
    sampling = load("runs/gym/cartpole/a")  # as it is evaluated
    assert len({int(sampling.act(np.zeros(4))) for _ in range(60)}) == 2
    config = run.path / "config.yaml"
    config.write_text(config.read_text().replace("evaluate_greedy: false", "evaluate_greedy: true"))
    assert load("runs/gym/cartpole/a").disable_sample
    assert not load("runs/gym/cartpole/a", disable_sample=False).disable_sample


def test_run_plays_the_best_readable_checkpoint_and_resume_continues_the_newest(command, run):
    assert run.find_best().folder == run.find_latest().folder  # evaluated at the end, as the only checkpoint
    checkpoints = run.checkpoints(keep=5)
    oldest = Checkpoint(min(path for path in checkpoints.folder.iterdir() if path.is_dir()))
    checkpoints.best.set_best(oldest, 1000.0)
    weights = oldest.folder / "agent" / "weights.pt"
    weights.write_bytes(weights.read_bytes()[:100])
    shown = command("gym/cartpole -n a --run").out
    assert f"{weights} is damaged" in shown
    assert f"checkpoint {run.find_latest().folder.name} has the best evaluation" in shown
    checkpoints.best.set_best(run.find_latest(), 1000.0)
    assert "weights after" in command("gym/cartpole -n a --resume --max_step 700").out


def test_the_episodes_after_the_confirmation_are_reported_and_played_by_run(command, played):
    easy = "goal.return=10 goal.evaluation_episodes=7 base_config.evaluate_greedy=false"
    shown = command(f"gym/cartpole -n a --set {easy}").out
    folder = RunFolder.find("gym/cartpole", "a")
    assert "goal reached and confirmed" in shown and folder.find_best().folder == folder.find_latest().folder
    command("gym/cartpole -n a --run")
    confirmation, reported, repeated = (results["agent"] for _, results in played)
    assert confirmation.returns != reported.returns == repeated.returns and len(reported.returns) == 7
    recorded = json.loads((folder.path / "result.json").read_text())["evaluation"]["agent"]
    assert recorded["returns"] == reported.returns and f"last evaluation: {reported}" in shown
    assert folder.checkpoints(keep=1).best.mean == recorded["mean"]


def test_a_resumed_run_is_evaluated_like_an_uninterrupted_one(command, played):
    base = "{env_type: PROBE, suggest_settings: false, env_name: truncation, n_envs: 3, "
    base += "evaluate_every: 300, max_step: 600}"
    write_task(f"default: {{base_config: {base}}}")
    command("mine/task -n one")
    whole, played[:] = [seed for seed, _ in played], []
    command("mine/task -n two --max_step 300")
    command("mine/task -n two --resume --max_step 600")
    assert [seed for seed, _ in played] == whole and len(set(whole)) == 2


def test_a_damaged_checkpoint_is_played_if_it_has_weights_and_set_aside_by_resume(command, run):
    place = run.path / "checkpoints"
    *_, before, last = sorted(place.glob("0*"))
    (last / "agent/learner.pt").unlink()
    (last / "agent/replay.npz").unlink()  # playing needs neither
    command("gym/cartpole -n a --run")
    shown = command("gym/cartpole -n a --resume").out
    assert f"{last / 'agent/learner.pt'} is missing" in shown and f"checkpoint {before.name} is used instead" in shown
    assert (place / f"damaged-{last.name}").is_dir() and run.find_latest().counters.env_steps >= 600


def test_a_missing_renderer_is_an_error_of_one_line(monkeypatch, command, run):
    monkeypatch.setitem(sys.modules, "pygame", None)  # as if the extra were not installed
    assert "pip install" in command.fail("gym/cartpole -n a --run --render")


def test_a_process_resumes_the_run_of_another(run):
    finished = start("gym/cartpole", "-n", "a", "--resume", "--max_step", "1000")
    assert (finished.returncode, finished.stderr) == (0, "")
    assert "base_config.max_step: 600 -> 1000" in finished.stdout
    assert run.load_settings().base.max_step == 1000
    first, second = (path.name for path in sorted(run.path.glob("configs/*.yaml")))
    assert first == "000000000000.yaml" and int(second[:12]) >= 600
    checkpoint = run.find_latest()
    assert 1000 <= checkpoint.counters.env_steps < 1010
    with (run.path / "metrics.csv").open(newline="") as file:
        steps = [int(row["env_steps"]) for row in csv.DictReader(file) if row["time/seconds"]]
    assert len(steps) == 5 and steps == sorted(set(steps))
    with np.load(checkpoint.folder / "agent" / "replay.npz") as arrays:
        assert arrays["head"].sum() > 700


def test_a_crash_and_a_failed_start_have_their_own_status():
    for error, status in [(EnvironmentStartError, 3), (EnvironmentCrashed, 1)]:
        assert describe_end(error("no seat")) == (status, "no seat")
    assert not issubclass(EnvironmentCrashed, EnvironmentStartError)


def test_every_error_class_with_a_status_exists():
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "algorithm").rglob("*.py"))
    for kind in STATUSES:
        assert hasattr(builtins, kind) or f"class {kind}(" in code, kind


ENVIRONMENT = """
import atexit, gc, sys
import gymnasium

class Module:
    def __del__(self):
        print("deleted", file=sys.stderr)

kept = Module()
kept.itself = kept
atexit.register(lambda: print("registered", file=sys.stderr))

def make(fails=False):
    print(gc.isenabled(), gc.get_freeze_count() > 100_000, file=sys.stderr)
    sys.stdout.write("no line")
    return 1 / 0 if fails else gymnasium.make("CartPole-v1")
"""


@pytest.fixture
def own_environment():
    write_task("default: {base_config: {env_name: env.py, suggest_settings: false, n_envs: 1, max_step: 100}}\n")
    Path("envs/mine/task/env.py").write_text(ENVIRONMENT)


@pytest.mark.parametrize(("options", "status"), [([], 0), (["--env_args", "fails=true"], 3)])
def test_a_process_collects_garbage_and_exits_with_its_status_after_all_exit_handlers(options, status, own_environment):
    """Garbage of training is collected, objects of imported modules are not."""
    finished = start("mine/task", "-n", "a", *options)
    assert finished.returncode == status
    assert "no line" in finished.stdout
    first, *_, last = finished.stderr.splitlines()
    assert (first, last) == ("True True", "registered")


def test_the_collector_of_a_process_that_is_used_for_more_than_a_run_stays(own_environment, command):
    before = gc.get_freeze_count()
    command("mine/task -n b")
    assert gc.isenabled() and gc.get_freeze_count() == before
