"""Whole commands, as a user types them."""

import builtins
import csv
import gc
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from algorithm import load
from algorithm.adapters.adapter import EnvironmentCrashed, EnvironmentStartError
from algorithm.checkpointing.checkpoint import Checkpoint
from algorithm.cli import main
from algorithm.config import registry
from algorithm.parts.run_folder import RunFolder
from algorithm.runs.faults import STATUSES, describe_end
from algorithm.training.evaluator import Evaluator
from tests.task_folder import write_task

ROOT = Path(__file__).resolve().parents[2]
SHORT = ["--set", "base_config.max_step=600", "base_config.log_every=200", "base_config.save_every=300"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train the run gym/cartpole/a in a working directory, once."""
    place = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert main.main(["gym/cartpole", "-n", "a", *SHORT]) == 0
    return place / "runs"


@pytest.fixture
def run(trained, capsys):
    """Return a copy of the run gym/cartpole/a."""
    shutil.copytree(trained, "runs")
    capsys.readouterr()
    return RunFolder.find("gym/cartpole", "a")


def fails(capsys, *arguments) -> tuple[int, str]:
    """Return the exit status and the only line on standard error."""
    try:
        status = main.main(list(arguments))
    except SystemExit as error:
        status = error.code
    return status, capsys.readouterr().err


def test_training_then_playing(capsys):
    assert main.main(["gym/cartpole", "-n", "test_{time}", *SHORT]) == 0
    shown = capsys.readouterr().out
    folder = RunFolder.find("gym/cartpole", None)
    assert folder.path.name.startswith("test_2")
    assert "steps/s" in shown
    assert "device: learning and acting on cpu (" in shown
    assert "goal not reached within" in shown
    assert f"run folder: {folder}" in shown.replace("\n", "")
    assert f"python main.py gym/cartpole -n {folder.path.name} --run" in shown
    assert f"python main.py gym/cartpole -n {folder.path.name} --resume" in shown
    assert f"tensorboard --logdir {folder}" in shown
    assert "last evaluation: return" in shown and "95% interval" in shown
    for name in ("config.yaml", "nn.py", "metrics.csv", "tensorboard", "checkpoints"):
        assert (folder.path / name).exists(), name
    assert (folder.path / "curve.png").exists() == ("curve" in registry.RUN_TOOLS)
    assert len(list((folder.path / "checkpoints").iterdir())) >= 2
    assert "rollout/return" in (folder.path / "metrics.csv").read_text().splitlines()[0]

    assert main.main(["gym/cartpole", "--run", "--disable_sample"]) == 0
    played = capsys.readouterr().out
    assert "return" in played and "std" in played and "length" in played and "20 episodes, greedy" in played


@pytest.mark.parametrize(
    ("greedy", "mode", "other"), [(True, "greedy", "sample"), (False, "sampled", "disable_sample")]
)
def test_playing_repeats_the_evaluation_of_the_best_weights(greedy, mode, other, capsys):
    changes = [*SHORT, "base_config.evaluate_every=150", f"base_config.evaluate_greedy={greedy}"]
    assert main.main(["gym/cartpole", "-n", "a", *changes]) == 0
    shown = capsys.readouterr().out
    evaluations = dict(re.findall(r"evaluation at (\d+) env steps: (.*)", shown))
    assert len(evaluations) > 2 and all(text.endswith(f"20 episodes, {mode}") for text in evaluations.values())
    best = str(RunFolder.find("gym/cartpole", "a").find_best().counters.env_steps)
    assert main.main(["gym/cartpole", "--run"]) == 0
    played = capsys.readouterr().out
    assert f"playing runs/gym/cartpole/a after {best} env steps, {mode}" in played
    assert f"runs/gym/cartpole/a: {evaluations[best]}; std" in played
    assert main.main(["gym/cartpole", "--run", f"--{other}", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["mode"] == {"sample": "sampled", "disable_sample": "greedy"}[other]
    assert evaluations[best] not in played.replace(mode, printed["mode"])


def test_an_id_is_trained_and_its_runs_are_found_by_the_id(capsys):
    assert main.main(["CartPole-v1", "-n", "a", *SHORT]) == 0
    shown = capsys.readouterr().out
    assert "tuned settings for CartPole-v1: python main.py gym/cartpole\n" in shown
    assert "play it:    python main.py CartPole-v1 -n a --run" in shown
    for line in ("{} --run --max_iter 1", "{} -n a --resume --max-step 700", "list {}", "report {}", "export {}"):
        assert main.main(line.format("CartPole-v1").split()) == 0, line
    assert "CartPole-v1/a" in capsys.readouterr().out
    assert (Path("runs/CartPole-v1/a") / "report.html").exists() and not Path("envs").exists()


def test_an_id_of_a_module_that_fails_before_learning_leaves_nothing(tmp_path, monkeypatch, capsys):
    (tmp_path / "failing_envs.py").write_text(
        "import gymnasium\n"
        "made = []\n"
        "def make(**arguments):\n"
        "    made.append(1)\n"
        "    if len(made) > 2:  # after the play of random actions from which settings are suggested\n"
        "        raise RuntimeError('broken')\n"
        "    return gymnasium.make('CartPole-v1')\n"
        "gymnasium.register('failing/Env-v0', make)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert main.main(["failing_envs:failing/Env-v0"]) == 3
    assert "training failing_envs:failing/Env-v0 with" in (shown := capsys.readouterr()).out
    assert "does not start: RuntimeError: broken" in shown.err
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


def test_run_plays_the_best_readable_checkpoint_and_resume_continues_the_newest(capsys, run):
    folder = run
    assert folder.find_best().folder == folder.find_latest().folder  # evaluated at the end, as the only checkpoint
    checkpoints = folder.checkpoints(keep=5)
    oldest = Checkpoint(min(path for path in checkpoints.folder.iterdir() if path.is_dir()))
    checkpoints.best.set_best(oldest, 1000.0)
    weights = oldest.folder / "agent" / "weights.pt"
    weights.write_bytes(weights.read_bytes()[:100])
    capsys.readouterr()
    assert main.main(["gym/cartpole", "-n", "a", "--run"]) == 0
    assert f"{weights} is damaged" in (shown := capsys.readouterr().out)
    assert f"checkpoint {folder.find_latest().folder.name} has the best evaluation" in shown
    checkpoints.best.set_best(folder.find_latest(), 1000.0)
    longer = folder.path / "config.yaml"
    longer.write_text(longer.read_text().replace("max_step: 600", "max_step: 700"))
    assert main.main(["gym/cartpole", "-n", "a", "--resume"]) == 0
    assert "weights after" in capsys.readouterr().out


def test_the_episodes_after_the_confirmation_are_reported_and_played_by_run(capsys, monkeypatch):
    played, real = [], Evaluator.play

    def play(*arguments):
        played.append(real(*arguments))
        return played[-1]

    monkeypatch.setattr(Evaluator, "play", play)
    easy = ["goal.return=10", "goal.evaluation_episodes=7", "base_config.evaluate_greedy=false"]
    assert main.main(["gym/cartpole", "-n", "a", "--set", *easy]) == 0
    folder = RunFolder.find("gym/cartpole", "a")
    shown = capsys.readouterr().out
    assert "goal reached and confirmed" in shown and folder.find_best().folder == folder.find_latest().folder
    assert main.main(["gym/cartpole", "-n", "a", "--run"]) == 0
    confirmation, reported, repeated = (results["agent"] for results in played)
    assert confirmation.returns != reported.returns == repeated.returns and len(reported.returns) == 7
    recorded = json.loads((folder.path / "result.json").read_text())["evaluation"]["agent"]
    assert recorded["returns"] == reported.returns and f"last evaluation: {reported}" in shown
    assert folder.checkpoints(keep=1).best.mean == recorded["mean"]


def test_a_resumed_run_is_evaluated_like_an_uninterrupted_one(monkeypatch):
    played, real = [], Evaluator.play
    monkeypatch.setattr(
        Evaluator, "play", lambda self, episodes, seed: played.append(seed) or real(self, episodes, seed)
    )
    base = "{env_type: PROBE, env_name: truncation, n_envs: 3, evaluate_every: 300, max_step: 600}"
    write_task(f"default: {{base_config: {base}}}")
    assert main.main(["mine/task", "-n", "one"]) == 0
    whole, played[:] = list(played), []
    assert main.main(["mine/task", "-n", "two", "--max_step", "300"]) == 0
    assert main.main(["mine/task", "-n", "two", "--resume", "--max_step", "600"]) == 0
    assert played == whole
    assert len(set(whole)) == 2


def test_damaged_checkpoints_are_reported_and_an_error_of_one_line_names_them_if_none_can_be_read(capsys, run):
    place = Path("runs/gym/cartpole/a/checkpoints")
    *_, before, last = sorted(place.glob("0*"))
    (last / "agent/learner.pt").unlink()
    (last / "agent/replay.npz").unlink()  # playing needs neither
    assert main.main(["gym/cartpole", "-n", "a", "--run"]) == 0
    assert main.main(["gym/cartpole", "-n", "a", "--resume"]) == 0
    shown = capsys.readouterr().out
    assert f"{last / 'agent/learner.pt'} is missing" in shown and f"checkpoint {before.name} is used instead" in shown
    assert (place / f"damaged-{last.name}").is_dir() and run.find_latest().counters.env_steps >= 600
    places = sorted(place.glob("0*"))
    for checkpoint in places:
        (checkpoint / "agent/learner.pt").unlink()
    status, line = fails(capsys, "gym/cartpole", "-n", "a", "--resume")
    assert status == 1 and line.count("\n") == 1
    assert all(f"{checkpoint / 'agent/learner.pt'} is missing" in line for checkpoint in places)


def test_changes_on_resuming_are_logged_and_recorded(capsys, run):
    config = Path("runs/gym/cartpole/a/config.yaml")
    config.write_text(config.read_text().replace("keep_checkpoints: 5", "keep_checkpoints: 4"))
    capsys.readouterr()
    more = ["--set", "base_config.max_step=900", "acer_config.learning_rate=0.0005"]
    assert main.main(["gym/cartpole", "-n", "a", "--resume", *more]) == 0
    shown = capsys.readouterr().out
    assert "base_config.max_step: 600 -> 900" in shown
    assert "base_config.keep_checkpoints: 5 -> 4" in shown
    assert "acer_config.learning_rate:" in shown and "-> 0.0005" in shown
    settings = RunFolder.find("gym/cartpole", "a").load_settings()
    assert (settings.base.max_step, settings.base.keep_checkpoints) == (900, 4)
    assert settings.agent.learning_rate == 0.0005
    history = [path.name for path in sorted(config.parent.glob("configs/*.yaml"))]
    assert len(history) == 2 and history[0] == "000000000000.yaml"
    assert int(history[1][:12]) >= 600


def test_ctrl_c_saves_a_checkpoint():
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, str(ROOT / "main.py"), "gym/cartpole", "-n", "a", "--set", "base_config.log_every=200"]
    process = subprocess.Popen([*command, "goal=null"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    for line in process.stdout:
        if b"steps/s" in line:
            break
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    resume = b"python main.py gym/cartpole -n a --resume"
    assert errors == b"Interrupted. Checkpoint saved in runs/gym/cartpole/a; resume with: " + resume + b"\n"
    assert json.loads(Path("runs/gym/cartpole/a/result.json").read_text())["status"] == 130
    assert main.main(["gym/cartpole", "-n", "a", "--run"]) == 0


def test_a_missing_renderer_is_an_error_of_one_line(monkeypatch, capsys, run):
    monkeypatch.setitem(sys.modules, "pygame", None)  # as if the extra were not installed
    status, line = fails(capsys, "gym/cartpole", "-n", "a", "--run", "--render")
    assert status == 2
    assert "pip install" in line


def test_a_process_resumes_the_run_of_another(run):
    command = [sys.executable, str(ROOT / "main.py"), "gym/cartpole", "-n", "a", "--resume", "--max_step", "1000"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    finished = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert "base_config.max_step: 600 -> 1000" in finished.stdout
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
    write_task("default: {base_config: {env_name: env.py, n_envs: 1, max_step: 100}}\n")
    Path("envs/mine/task/env.py").write_text(ENVIRONMENT)


@pytest.mark.parametrize(("arguments", "status"), [([], 0), (["--env_args", "fails=true"], 3)])
def test_a_process_collects_garbage_and_exits_with_its_status_after_all_exit_handlers(
    arguments, status, own_environment
):
    """Garbage of training is collected, objects of imported modules are not."""
    command = [sys.executable, str(ROOT / "main.py"), "mine/task", "-n", "a", *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert finished.returncode == status
    assert "no line" in finished.stdout
    first, *_, last = finished.stderr.splitlines()
    assert (first, last) == ("True True", "registered")


def test_the_collector_of_a_process_that_is_used_for_more_than_a_run_stays(own_environment):
    before = gc.get_freeze_count()
    assert main.main(["mine/task", "-n", "b"]) == 0
    assert gc.isenabled() and gc.get_freeze_count() == before
