"""Training from a program: environments, settings, callbacks, results and errors."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import yaml

from algorithm import Callback, load, train
from algorithm.cli import main
from algorithm.errors import UserError
from algorithm.runs.results import describe_state

SHORT = {"base_config.max_step": 300, "base_config.log_every": 100, "base_config.save_every": 150, "goal": None}


def make_short_cartpole():
    """An environment whose function can be imported."""
    return gymnasium.make("CartPole-v1", max_episode_steps=20)


class Events(Callback):
    """A callback that records the names of events, and stops the run at the first evaluation."""

    def __init__(self):
        self.names = []

    def on_progress(self, progress):
        self.names.append("progress")

    def on_checkpoint(self, checkpoint):
        self.names.append("checkpoint")

    def on_evaluation(self, results):
        self.names.append("evaluation")
        return True

    def on_end(self, result):
        self.names.append("end")


def test_a_folder_is_trained_as_by_the_command_line(capfd):
    result = train("gym/cartpole", name="a", settings={**SHORT, "base_config": {"seed": 3}})
    assert capfd.readouterr().out == ""  # only the program prints
    words = ["base_config.log_every=100", "base_config.save_every=150", "goal=null"]
    assert main.main(["gym/cartpole", "-n", "b", "--max-step", "300", "--seed", "3", "--set", *words]) == 0
    one, other = (json.loads((result.folder.parent / name / "result.json").read_text()) for name in "ab")
    different = {"seconds", "cpu_seconds", "started", "ended", "time", "command"}
    assert {key: one[key] for key in one if key not in different} == {
        key: other[key] for key in other if key not in different
    }
    weights = [sorted((result.folder.parent / name).rglob("weights.pt"))[-1].read_bytes() for name in "ab"]
    assert weights[0] == weights[1]


def test_the_result_has_what_the_run_reached():
    easy = {"goal.return": 10, "base_config.evaluate_every": 100, "base_config.save_every": 100}
    result = train("gym/cartpole", name="a", settings=easy)
    assert result.goal_reached is True and result.confirmed_by == "evaluation"
    assert result.folder == Path("runs/gym/cartpole/a").resolve() and not result.stopped
    assert result.counters.env_steps >= 100 and list(result.returns) == ["agent"]
    assert result.evaluation["agent"].mean >= 10
    assert result.best.counters.env_steps == result.counters.env_steps
    assert load(result.folder).act(np.zeros(4)) in (0, 1)


def test_settings_may_be_sections_and_paths():
    train("gym/cartpole", name="a", settings={**SHORT, "acer_config": {"gamma": 0.5}, "acer_config.batch_size": 3})
    section = yaml.safe_load(Path("runs/gym/cartpole/a/config.yaml").read_text())["acer_config"]
    assert (section["gamma"], section["batch_size"]) == (0.5, 3)


def test_an_id_is_trained_with_the_settings_that_init_suggests(tmp_path):
    result = train("Pendulum-v1", name="a", settings=SHORT | {"acer_config.gamma": 0.9})
    assert not (tmp_path / "envs").exists()
    tree = yaml.safe_load((result.folder / "config.yaml").read_text())
    assert tree["acer_config"]["std"] == "learned" and tree["acer_config"]["gamma"] == 0.9
    assert load(result.folder).act(np.zeros(3)).shape == (1,)
    with pytest.raises(UserError, match="exists already"):
        train("Pendulum-v1", name="a", settings=SHORT)
    train("Pendulum-v1", name="a", settings=SHORT, replace=True)


def test_a_function_is_an_environment():
    lengths = []

    def make():
        lengths.append(1)
        return make_short_cartpole()

    result = train(make, name="a", settings=SHORT)
    assert lengths and result.counters.episodes >= 300 // 20
    assert not (result.folder / "env.py").exists()
    assert load(result.folder).act(np.zeros(4)) in (0, 1)
    named = train(make_short_cartpole, name="b", settings=SHORT)
    assert "import make_short_cartpole as make" in (named.folder / "env.py").read_text()


def test_callbacks_receive_events_and_stop_the_run():
    events = Events()
    settings = {"base_config.evaluate_every": 100, "base_config.save_every": 50, "goal": None}
    result = train("gym/cartpole", name="a", settings=settings, callbacks=[events])
    assert result.stopped and result.counters.env_steps < 1000
    record = json.loads((result.folder / "result.json").read_text())
    assert (record["stopped"], record["status"], describe_state(record)) == (
        True,
        0,
        "stopped by a callback or a time limit",
    )
    resumed = train("gym/cartpole", name="a", settings={"base_config.max_step": 1000}, resume=True)
    assert not resumed.stopped and json.loads((result.folder / "result.json").read_text())["stopped"] is False
    assert {"progress", "checkpoint", "evaluation"} <= set(events.names) and events.names[-1] == "end"


def test_a_run_is_resumed():
    first = train("gym/cartpole", name="a", settings=SHORT)
    lines = []
    second = train("gym/cartpole", settings={"base_config.max_step": 600}, resume=True, log=lines.append)
    assert second.folder == first.folder and second.counters.env_steps >= 600
    assert "base_config.max_step: 300 -> 600" in lines
    with pytest.raises(UserError, match="resume needs an environment folder"):
        train("CartPole-v1", resume=True)


def test_variants_are_read_from_the_folder(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.yaml").write_text(
        "default: {base_config: {env_type: PROBE, env_name: chain, max_step: 100}}\n"
        "long: {base_config: {max_step: 200}}\n"
    )
    assert train(folder, variant="long").counters.env_steps >= 200
    with pytest.raises(UserError, match="no variant 'short'"):
        train(folder, variant="short")


@pytest.mark.parametrize(
    ("env", "arguments", "message"),
    [
        ("gym/cartpole", {"resume": True, "variant": "default"}, "variant 'default' is for a new run"),
        ("gym/cartpole", {"resume": True, "replace": True}, "replace is for a new run"),
        ("CartPole-v1", {"resume": True}, "resume needs an environment folder"),
        ("CartPole-v1", {"variant": "default"}, "variant 'default' needs an environment folder"),
        (make_short_cartpole, {"variant": "long"}, "variant 'long' needs an environment folder"),
        (make_short_cartpole, {"resume": True}, "resume needs an environment folder"),
    ],
)
def test_an_argument_without_effect_is_a_mistake(env, arguments, message):
    with pytest.raises(UserError, match=f"^{message}"):
        train(env, settings=SHORT, **arguments)
    assert not Path("runs").exists()


@pytest.mark.parametrize("env", ["gym/cartpole", "CartPole-v1", make_short_cartpole])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"acer_config.std": "learned"}, "settings: acer_config.std is for continuous actions"),
        (
            {"base_config.algorithm": "ACER", "sac_config.gamma": 0.9},
            "settings: sac_config.gamma is for algorithm",
        ),
        ({"base_config.max_stp": 1}, "settings: unknown setting base_config.max_stp"),
    ],
)
def test_a_setting_without_effect_is_a_mistake_for_every_environment(env, settings, message):
    with pytest.raises(UserError, match=f"^{message}"):
        train(env, settings={**SHORT, **settings})
    assert not list(Path().glob("runs/*/*/*"))


@pytest.mark.parametrize(
    ("env", "settings", "message"),
    [
        ("gym/cartpol", {}, "gym/cartpole"),
        ("Cart-v9", {}, "Cart"),
        ("gym/cartpole", {"acer_config.gama": 1}, "did you mean acer_config.gamma?"),
        ("gym/cartpole", {"acer_config": {"gama": 1}}, "settings: .*acer_config.gama"),
        ("gym/cartpole", {"base_config.max_step": "many"}, "base_config.max_step is 'many'"),
    ],
)
def test_mistakes_are_exceptions_and_leave_nothing(env, settings, message):
    with pytest.raises((UserError, ValueError), match=message):
        train(env, name="a", settings=settings)
    assert not list(Path().glob("runs/*/*/*"))


def test_an_exception_of_a_callback_is_raised_and_the_run_is_kept():
    class Failing(Callback):
        def on_checkpoint(self, checkpoint):
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        train("gym/cartpole", name="a", settings=SHORT, callbacks=[Failing()])
    assert json.loads(Path("runs/gym/cartpole/a/result.json").read_text())["status"] == 1


def test_signal_handlers_and_the_working_directory_stay():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)], Path.cwd()
    train("gym/cartpole", settings=SHORT)
    assert ([signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)], Path.cwd()) == before
