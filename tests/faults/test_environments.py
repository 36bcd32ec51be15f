"""Training runs of environments that misbehave."""

import re
from pathlib import Path

import numpy as np
import pytest

from algorithm.cli import main
from algorithm.training.learner import Learner
from tests.faults.runs import ARGUMENTS, BROKEN, assert_playable, run_folder, saved_steps, write_task

EXIT_IN_ENCODER = """
import sys
from algorithm.networks import Blueprint, Vector

class Exits(Vector):
    def __call__(self, spec):
        sys.exit()

blueprint = Blueprint({"*": Exits()})
"""


def train(capsys, fault: str, *arguments: str, **base) -> tuple[int, str, str]:
    """Train; return the exit status, standard output and standard error."""
    write_task(BROKEN.format(fault=fault), **base)
    status = main.main([*ARGUMENTS, *arguments])
    streams = capsys.readouterr()
    assert "Traceback" not in streams.out + streams.err
    return status, streams.out, streams.err


SENSORS = """
import gymnasium
import numpy as np
from gymnasium import spaces

class Sensors(gymnasium.Env):
    steps = 0  # of all environments in this process
    observation_space = spaces.Dict(
        action_mask=spaces.MultiBinary(5), camera=spaces.MultiBinary(3), speed=spaces.Box(-9, 9, (2,))
    )
    action_space = spaces.MultiDiscrete([3, 2])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age, self.reward = 0, 1
        return self.observation_space.sample() | {{"action_mask": np.ones(5, np.int8)}}, {{}}

    def step(self, action):
        Sensors.steps += 1
        self.age += 1
        obs = self.observation_space.sample() | {{"action_mask": np.ones(5, np.int8)}}
        if Sensors.steps % 50 == 0 and self.age < 12:
            self.reward = 1000  # of this step and the following ones of the episode
            {fault}
        return obs, self.reward, False, self.age == 12, {{}}

make = Sensors
"""


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("obs['speed'][1] = np.nan", "the observation 'speed' of lane 1 of role 'agent' is NaN"),
        ("obs['speed'][0] = -np.inf", "the observation 'speed' of lane 1 of role 'agent' is infinite"),
        ("self.reward = -np.inf", "the reward of lane 1 of role 'agent' is infinite"),
        (
            "obs['action_mask'][3:] = 0",
            "the observation 'action_mask' of lane 1 of role 'agent' forbids every action of branch 1",
        ),
    ],
)
def test_a_faulty_sensor_or_mask_is_logged_and_excluded_from_training(fault, message, capsys, monkeypatch):
    learned = []
    compute_gradients = Learner.compute_gradients

    def record(self, rollout):
        learned.append(rollout)
        return compute_gradients(self, rollout)

    monkeypatch.setattr(Learner, "compute_gradients", record)
    write_task(SENSORS.format(fault=fault))
    assert main.main(ARGUMENTS) == 0
    out, err = capsys.readouterr()
    logged = [line for line in out.splitlines() if "of role 'agent'" in line]
    assert err == "" and all(message in line for line in logged)
    assert len(logged) == 2 and "(10 faults of this kind so far)" in logged[1]
    assert message in (run_folder().path / "faults.log").read_text()
    assert len(learned) > 20
    with np.load(run_folder().find_latest().folder / "agent" / "replay.npz") as arrays:
        assert all(np.isfinite(arrays[name]).all() for name in arrays.files if arrays[name].dtype.kind == "f")
    for rollout in learned:
        assert (rollout.reward[rollout.valid & (rollout.reward != 0)] == 1).all()  # bootstrap rows have reward 0
        assert all(np.isfinite(value).all() for value in rollout.obs.values())
        assert (np.maximum.reduceat(rollout.obs["action_mask"], [0, 3], axis=-1) == 1).all()


@pytest.mark.parametrize(
    ("fault", "error"), [("raise OSError('disconnected')", "OSError: "), ("sys.exit(0)", "SystemExit: 0 ")]
)
def test_an_environment_that_always_raises_ends_the_run_with_a_checkpoint(fault, error, capsys):
    status, _, err = train(capsys, f"if Broken.steps > 400: {fault}", max_env_restarts=3)
    assert status == 1
    assert err.count("\n") == 1
    assert re.search(rf"crashed 4 times, .* base_config.max_env_restarts: {error}.*env\.py, line", err)
    assert max(saved_steps()) > 350
    assert_playable()


STOP = "class Stop(BaseException): pass"


@pytest.mark.parametrize(
    ("kind", "fault", "error"),
    [
        ("sync", "if Broken.steps == 100: raise OSError('connection lost')", "OSError: connection lost"),
        ("sync", "if Broken.steps == 100: sys.exit()", "SystemExit"),
        ("async", "if Broken.steps == 100: sys.exit()", "SystemExit"),
        ("async", f"{STOP}\n        if Broken.steps == 100: raise Stop('enough')", "Stop: enough"),
    ],
)
def test_what_a_step_raises_is_logged_in_one_line_and_in_faults_log(kind, fault, error, capsys):
    status, out, err = train(capsys, fault, n_envs=1, env_args={"vectorization_mode": kind})
    assert status == 0 and err == ""
    path = run_folder().path / "faults.log"
    line = rf"raised {error} \(\S*env\.py, line \d+\) in a step.*\(details: {path}\)"
    assert len(re.findall(line, out)) == 1
    assert "Traceback (most recent call last)" in path.read_text() and "env.py" in path.read_text()
    assert max(saved_steps()) >= 600


IN_MAKE = "def make():\n    {}\n"
IN_RESET = """
import gymnasium
class Failing(gymnasium.Wrapper):
    def reset(self, **_):
        {}
def make():
    return Failing(gymnasium.make("CartPole-v1"))
"""


EXIT = "raise SystemExit(0)", "sys.exit(0) was called"
RAISE_STOP = "raise type('Stop', (BaseException,), {})('enough')", "Stop: enough"


@pytest.mark.parametrize(
    ("env", "kind", "fault", "message"),
    [
        *((env, kind, *EXIT) for env in (IN_MAKE, IN_RESET) for kind in ("sync", "async")),
        *((env, "sync", *RAISE_STOP) for env in (IN_MAKE, IN_RESET)),
        (IN_MAKE, "async", "raise OSError('no display')", "OSError: no display"),
    ],
)
def test_an_environment_that_does_not_start_is_a_start_error(env, kind, fault, message, capsys):
    write_task(env.format(fault), n_envs=1, env_args={"vectorization_mode": kind})
    assert main.main(ARGUMENTS) == 3
    assert message in (err := capsys.readouterr().err) and err.count("\n") == 1
    assert not Path("runs").exists()


NN = Path("envs/own/task/nn.py")


@pytest.mark.parametrize(
    ("nn", "status", "message"),
    [(EXIT_IN_ENCODER, 1, "sys.exit(None) was called"), (f"{STOP}\nraise Stop('enough')\n", 2, "Stop: enough")],
)
def test_an_error_of_a_network_at_the_start_is_one_line(nn, status, message, capsys):
    write_task()
    NN.write_text(nn)
    assert main.main(ARGUMENTS) == status
    assert message in (err := capsys.readouterr().err) and err.count("\n") == 1
    assert not Path("runs").exists()


MOVING = """
import os
import gymnasium

class Moving(gymnasium.Wrapper):
    def step(self, action):
        os.chdir("/")
        return self.env.step(action)

    def reset(self, **options):
        os.chdir(os.path.dirname(os.getcwd()))
        return self.env.reset(**options)

def make():
    os.makedirs("elsewhere/below", exist_ok=True)
    os.chdir("elsewhere/below")
    return Moving(gymnasium.make("CartPole-v1"))
"""


def test_an_environment_may_change_the_working_directory(capsys, monkeypatch):
    here = Path.cwd()
    write_task(MOVING.replace('os.chdir("/")', f'os.chdir("{here / "envs"}")'), evaluate_every=200)
    for name, arguments in (("one", []), ("two", ["--resume", "--max_step", "900"]), ("play", ["--run"])):
        assert main.main([*ARGUMENTS, "--logger_in_file", *arguments]) == 0, name
        monkeypatch.chdir(here)
        streams = capsys.readouterr()
        assert streams.err == "" and "runs/own/task/a" in streams.out
    folder = here / "runs" / "own" / "task" / "a"
    for name in ("checkpoints/best.json", "log.txt", "metrics.csv", "result.json", "curve.png", "tensorboard"):
        assert (folder / name).exists(), name
    assert {path.name for path in here.iterdir()} == {"envs", "runs", "elsewhere"}
    assert [path for path in (here / "elsewhere").rglob("*") if path.is_file()] == []
    assert max(saved_steps()) >= 900


def test_repeated_runs_start_in_the_same_working_directory(capsys):
    write_task(MOVING)
    here = Path.cwd()
    assert main.main([*ARGUMENTS, "--repeat", "2"]) == 0
    assert capsys.readouterr().err == ""
    assert sorted(path.name for path in (here / "runs" / "own" / "task").glob("a-?")) == ["a-1", "a-2"]
    assert Path.cwd() == here


def test_divergence_ends_the_run_and_keeps_the_last_checkpoint(capsys):
    fault = "if Broken.steps > 320: reward = 1e30"
    fresh_only = ["--set", "acer_config.replay_ratio=0", "acer_config.reward_scale=1"]
    status, out, err = train(capsys, fault, *fresh_only, max_nonfinite_updates=5)
    assert status == 4
    assert err.count("\n") == 1
    assert "role 'agent' had a NaN or infinite loss or gradient (base_config.max_nonfinite_updates is 5)" in err
    assert "updates of role 'agent' were skipped up to update" in out
    assert len(saved_steps()) == 1 and saved_steps()[0] < 320
    assert_playable()
