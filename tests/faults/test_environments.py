"""Environments that misbehave, under real runs."""

import re
from pathlib import Path

import numpy as np
import pytest

import main
from algorithm.training.learner import Learner
from tests.faults.runs import ARGUMENTS, assert_playable, run_folder, saved_steps, write_task

BROKEN = """
import os, sys, time
import gymnasium
import numpy as np

class Broken(gymnasium.Wrapper):
    steps = 0  # of all copies in this process

    def step(self, action):
        Broken.steps += 1
        obs, reward, terminated, truncated, info = self.env.step(action)
        {fault}
        return obs, reward, terminated, truncated, info

def make():
    return Broken(gymnasium.make("CartPole-v1"))
"""


EXIT_IN_BLUEPRINT = "import sys\ndef blueprint():\n    sys.exit()"
EXIT_IN_ENCODER = """
import sys
from algorithm.networks import Blueprint, Vector

class Exits(Vector):
    def __call__(self, spec):
        sys.exit()

blueprint = Blueprint({"*": Exits()})
"""


def train(capsys, fault: str, *arguments: str, **base) -> tuple[int, str, str]:
    """Status and what was shown on both streams."""
    write_task(BROKEN.format(fault=fault), **base)
    status = main.main([*ARGUMENTS, *arguments])
    shown = capsys.readouterr()
    assert "Traceback" not in shown.out + shown.err
    return status, shown.out, shown.err


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ("if Broken.steps % 50 == 0: obs = obs * np.nan", "the observation 'obs' of lane 1 of role 'agent' is NaN"),
        ("if Broken.steps % 51 == 0: reward = -np.inf", "the reward of lane 0 of role 'agent' is infinite"),
    ],
)
def test_no_number_that_is_none_is_stored(fault, named, capsys):
    status, out, err = train(capsys, fault)
    assert status == 0 and err == ""
    assert named in out
    lines = [line for line in out.splitlines() if "role 'agent'" in line]
    assert 5 < len(lines) <= 20
    assert named in (run_folder().path / "faults.log").read_text()
    with np.load(run_folder().find_latest().folder / "agent" / "replay.npz") as arrays:
        assert all(np.isfinite(arrays[name]).all() for name in arrays.files if arrays[name].dtype.kind == "f")
    assert run_folder().find_latest().counters.updates > 0


SENSORS = """
import gymnasium
import numpy as np
from gymnasium import spaces

class Sensors(gymnasium.Env):
    steps = 0  # of all copies in this process
    observation_space = spaces.Dict(
        action_mask=spaces.MultiBinary(5), camera=spaces.MultiBinary(3), speed=spaces.Box(-9, 9, (2,))
    )
    action_space = spaces.MultiDiscrete([3, 2])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age, self.worth = 0, 1
        return self.observation_space.sample() | {{"action_mask": np.ones(5, np.int8)}}, {{}}

    def step(self, action):
        Sensors.steps += 1
        self.age += 1
        obs = self.observation_space.sample() | {{"action_mask": np.ones(5, np.int8)}}
        if Sensors.steps % 50 == 0 and self.age < 12:
            self.worth = 1000  # of this step and of all others up to the end of the episode
            {fault}
        return obs, self.worth, False, self.age == 12, {{}}

make = Sensors
"""


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ("obs['speed'][1] = np.nan", "the observation 'speed' of lane 1 of role 'agent' is NaN"),
        ("obs['speed'][0] = -np.inf", "the observation 'speed' of lane 1 of role 'agent' is infinite"),
        (
            "obs['action_mask'][3:] = 0",
            "the observation 'action_mask' of lane 1 of role 'agent' forbids every action of branch 1",
        ),
    ],
)
def test_one_sensor_or_mask_of_one_copy_is_named_and_nothing_of_it_is_trained_on(fault, named, capsys, monkeypatch):
    learned = []
    learn = Learner.learn

    def watched(self, rollout):
        learned.append(rollout)
        return learn(self, rollout)

    monkeypatch.setattr(Learner, "learn", watched)
    write_task(SENSORS.format(fault=fault))
    assert main.main(ARGUMENTS) == 0
    out, err = capsys.readouterr()
    told = [line for line in out.splitlines() if "of role 'agent'" in line]
    assert err == "" and len(told) > 5 and all(named in line for line in told)
    assert named in (run_folder().path / "faults.log").read_text()
    assert len(learned) > 20
    for rollout in learned:
        assert (rollout.reward[rollout.valid & (rollout.reward != 0)] == 1).all()  # final rows are worth 0
        assert all(np.isfinite(value).all() for value in rollout.obs.values())
        assert (np.maximum.reduceat(rollout.obs["action_mask"], [0, 3], axis=-1) == 1).all()


def test_an_environment_that_raises_is_told_in_a_line_and_in_the_log(capsys):
    status, out, err = train(capsys, "if Broken.steps == 100: raise OSError('connection lost')")
    assert status == 0 and err == ""
    told = [line for line in out.splitlines() if "connection lost" in line]
    assert len(told) == 1 and "lane 1 raised OSError: connection lost in a step" in told[0]
    log = (run_folder().path / "faults.log").read_text()
    assert "Traceback (most recent call last)" in log and "env.py" in log
    assert max(saved_steps()) >= 600


def test_an_environment_that_always_raises_ends_the_run_with_what_was_learned(capsys):
    status, _, err = train(capsys, "if Broken.steps > 400: raise OSError('gone')", max_env_restarts=3)
    assert status == 1
    assert err.count("\n") == 1
    assert "broke 4 times, which is more than base_config.max_env_restarts" in err
    assert max(saved_steps()) > 350
    assert_playable()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_sys_exit_in_a_step_is_told_as_whatever_else_is_raised(kind, capsys):
    args = {"n_envs": 1, "env_args": {"vectorization_mode": kind}}
    status, out, err = train(capsys, "if Broken.steps == 100: sys.exit()", **args)
    assert status == 0 and err == ""
    assert len(re.findall(r"raised SystemExit in \S*env\.py, line \d+ in a step", out)) == 1
    assert max(saved_steps()) >= 600


def test_sys_exit_in_every_step_ends_the_run_as_a_failure(capsys):
    status, _, err = train(capsys, "if Broken.steps > 400: sys.exit(0)", max_env_restarts=3)
    assert status == 1
    assert err.count("\n") == 1 and "broke 4 times" in err
    assert_playable()


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(
    "env",
    [
        "def make():\n    raise SystemExit(0)\n",
        "import gymnasium\nclass Exits(gymnasium.Wrapper):\n"
        "    def reset(self, **given):\n        raise SystemExit(0)\n"
        "def make():\n    return Exits(gymnasium.make('CartPole-v1'))\n",
    ],
    ids=["make", "reset"],
)
def test_sys_exit_at_the_start_is_an_environment_that_does_not_start(env, kind, capsys):
    write_task(env, n_envs=1, env_args={"vectorization_mode": kind})
    assert main.main(ARGUMENTS) == 3
    assert "sys.exit(0) was called" in (err := capsys.readouterr().err) and err.count("\n") == 1
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("nn", "status"), [("import sys\nsys.exit()", 2), (EXIT_IN_BLUEPRINT, 2), (EXIT_IN_ENCODER, 1)]
)
def test_sys_exit_in_a_network_is_no_success(nn, status, capsys):
    write_task()
    Path("envs/own/task/nn.py").write_text(nn)
    assert main.main(ARGUMENTS) == status
    assert capsys.readouterr().err.count("\n") == 1
    assert not Path("runs").exists()


def test_a_run_that_does_not_start_names_the_file_in_the_environment_folder(capsys):
    write_task()
    Path("envs/own/task/nn.py").write_text("x = 1\nraise RuntimeError('no such luck')\n")
    assert main.main(ARGUMENTS) == 2
    assert capsys.readouterr().err == f"{Path('envs/own/task/nn.py')}, line 2: RuntimeError: no such luck\n"
    assert not Path("runs").exists()


MOVING = """
import os
import gymnasium

class Moving(gymnasium.Wrapper):
    def step(self, action):
        os.chdir("/")
        return self.env.step(action)

    def reset(self, **given):
        os.chdir(os.path.dirname(os.getcwd()))
        return self.env.reset(**given)

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
        shown = capsys.readouterr()
        assert shown.err == "" and "runs/own/task/a" in shown.out
    folder = here / "runs" / "own" / "task" / "a"
    for name in ("checkpoints/best.json", "log.txt", "metrics.csv", "result.json", "curve.png", "tensorboard"):
        assert (folder / name).exists(), name
    assert {path.name for path in here.iterdir()} == {"envs", "runs", "elsewhere"}
    assert [path for path in (here / "elsewhere").rglob("*") if path.is_file()] == []
    assert max(saved_steps()) >= 900


def test_repeated_runs_begin_in_the_same_working_directory(capsys):
    write_task(MOVING)
    here = Path.cwd()
    assert main.main([*ARGUMENTS, "--repeat", "2"]) == 0
    assert capsys.readouterr().err == ""
    assert sorted(path.name for path in (here / "runs" / "own" / "task").iterdir()) == ["a-1", "a-2"]
    assert Path.cwd() == here


def test_an_environment_that_hangs_is_named(capsys):
    args = {"n_envs": 1, "env_args": {"vectorization_mode": "async"}, "env_timeout": 0.5, "max_env_restarts": 0}
    status, _, err = train(capsys, "if Broken.steps == 50: time.sleep(1000)", **args)
    assert status == 1
    assert err.count("\n") == 1
    assert "no answer of copy 0 within 0.5 s" in err
    assert_playable()


def test_a_process_that_exits_is_replaced_within_the_budget(capsys):
    args = {"n_envs": 1, "env_args": {"vectorization_mode": "async"}, "max_env_restarts": 1}
    status, out, err = train(capsys, "if Broken.steps == 150: os._exit(9)", **args)
    assert status == 1
    assert out.count("exit code 9") == 1 and err.count("exit code 9") == 1
    assert "broke 2 times" in err
    assert_playable()


def test_an_environment_whose_processes_do_not_start_is_status_3(capsys):
    write_task("def make():\n    raise OSError('no display')\n", n_envs=1, env_args={"vectorization_mode": "async"})
    assert main.main(ARGUMENTS) == 3
    assert "OSError: no display" in capsys.readouterr().err
    assert not Path("runs/own/task/a").exists()


SEATED = """
from pathlib import Path
import gymnasium

class Seated(gymnasium.Wrapper):
    seat = None

    def reset(self, **options):
        if self.seat is None:
            self.seat = len(list(Path().glob("seat-*")))
            if self.seat == 2:
                raise OSError("both seats are taken")
            Path(f"seat-{self.seat}").touch()
        return self.env.reset(**options)

def make():
    return Seated(gymnasium.make("Pendulum-v1"))
"""


def test_an_environment_without_a_seat_for_evaluation_is_trained_without_it(capsys):
    write_task(SEATED, max_step=2000, max_step_each_iter=10)
    assert main.main([*ARGUMENTS, "--set", "goal.return=-1000"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    told = [line for line in shown.out.splitlines() if "both seats are taken" in line]
    assert len(told) == 1 and "training continues without evaluation" in told[0]
    assert "goal reached and confirmed by training episodes only" in shown.out


def test_a_time_limit_needs_processes(capsys):
    write_task(env_timeout=3)
    assert main.main(ARGUMENTS) == 2
    assert "env_timeout is 3" in capsys.readouterr().err


def test_divergence_ends_the_run_and_leaves_the_last_checkpoint(capsys):
    fault, fresh_only = "if Broken.steps > 320: reward = 1e30", ["--set", "acer_config.replay_ratio=0"]
    status, out, err = train(capsys, fault, *fresh_only, max_nonfinite_updates=5)
    assert status == 4
    assert err.count("\n") == 1
    assert "role 'agent' had a NaN or infinite loss or gradient (base_config.max_nonfinite_updates is 5)" in err
    assert "updates of role 'agent' were skipped up to update" in out
    assert len(saved_steps()) == 1 and saved_steps()[0] < 320
    assert_playable()


FEW = """
import gymnasium
from pathlib import Path

def make(most):
    with Path("made").open("a") as file:
        file.write("x")
    if len(Path("made").read_text()) > most:
        raise OSError(f"there are licences for {most}")
    return gymnasium.make("CartPole-v1")
"""


def test_environments_of_evaluation_are_made_when_they_are_needed(capsys):
    write_task(FEW, n_envs=3, env_args={"most": 3})
    assert main.main([*ARGUMENTS, "--max_step", "300"]) == 0
    assert Path("made").read_text() == "xxx"
