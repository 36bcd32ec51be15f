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
from algorithm.checkpointing.checkpoint import get_process_state
from algorithm.cli import main
from algorithm.errors import UserError
from algorithm.networks import Blueprint, Mlp
from algorithm.runs.results import describe_state
from tests.task_folder import write_task

SHORT = {"base_config.max_step": 300, "base_config.log_every": 100, "base_config.save_every": 150, "goal": None}


def make_short_cartpole():
    """An environment whose function can be imported."""
    return gymnasium.make("CartPole-v1", max_episode_steps=20)


def read_result(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text())


def read_settings(folder: Path) -> dict:
    return yaml.safe_load((folder / "config.yaml").read_text())


def read_weights(folder: Path) -> bytes:
    """Return the weights of the newest checkpoint."""
    return max(folder.rglob("weights.pt")).read_bytes()


def test_a_folder_is_trained_as_by_the_command_line(capfd):
    result = train("gym/cartpole", name="a", settings={**SHORT, "base_config": {"seed": 3}})
    assert capfd.readouterr().out == ""  # only the program prints
    words = ["base_config.log_every=100", "base_config.save_every=150", "goal=null"]
    assert main.main(["gym/cartpole", "-n", "b", "--max-step", "300", "--seed", "3", "--set", *words]) == 0
    other = result.folder.parent / "b"
    times = dict.fromkeys(("seconds", "cpu_seconds"))
    assert read_result(result.folder) | times == read_result(other) | times
    assert read_weights(result.folder) == read_weights(other)


def test_the_result_has_what_the_run_reached():
    easy = {"goal.return": 10, "base_config.evaluate_every": 100, "base_config.save_every": 100}
    result = train("gym/cartpole", name="a", settings=easy)
    assert result.goal_reached is True and result.confirmed_by == "evaluation"
    assert result.folder == Path("runs/gym/cartpole/a").resolve() and not result.stopped
    assert result.counters.env_steps >= 100 and list(result.returns) == ["agent"]
    assert result.evaluation["agent"].mean >= 10
    assert result.best.counters.env_steps == result.counters.env_steps
    assert load(result.folder).act(np.zeros(4)) in (0, 1)


def test_an_id_is_trained_with_the_settings_that_init_suggests(tmp_path, monkeypatch):
    monkeypatch.setattr("algorithm.parts.suggested_settings.MAX_SECONDS", 0.0)
    settings, lines = SHORT | {"acer_config.gamma": 0.9, "base_config.evaluate_every": None}, []
    result = train("Pendulum-v1", name="a", settings=settings, log=lines.append)
    assert sum("during a play of random actions" in line for line in lines) == 1
    assert not (tmp_path / "envs").exists()
    section = read_settings(result.folder)["acer_config"]
    assert section["std"] == "learned" and section["gamma"] == 0.9
    assert load(result.folder).act(np.zeros(3)).shape == (1,)
    with pytest.raises(UserError, match=r"already; resume=True continues it, replace=True replaces it, name=\.\.\."):
        train("Pendulum-v1", name="a", settings=settings)
    train("Pendulum-v1", name="a", settings=settings, replace=True)


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


class Stopping(Callback):
    def on_evaluation(self, results):
        return True


def test_a_run_that_a_callback_has_stopped_is_recorded_as_such_until_it_is_resumed():
    settings = {"base_config.evaluate_every": 100, "base_config.save_every": 50, "goal": None}
    result = train("gym/cartpole", name="a", settings=settings, callbacks=[Stopping()])
    assert result.stopped and result.counters.env_steps < 1000
    record = read_result(result.folder)
    assert (record["stopped"], record["status"]) == (True, 0)
    assert describe_state(record) == "stopped by a callback or a time limit"
    resumed = train("gym/cartpole", name="a", settings={"base_config.max_step": 1000}, resume=True)
    assert not resumed.stopped and read_result(result.folder)["stopped"] is False


@pytest.mark.parametrize("env", ["gym/cartpole", make_short_cartpole])
def test_a_run_of_a_folder_or_a_function_is_resumed(env):
    with pytest.raises(UserError, match="there is no run under runs/"):
        train(env, resume=True)
    first, lines = train(env, settings=SHORT), []
    with pytest.raises(UserError, match="^settings: sac_config.gamma is for algorithm SAC"):
        train(env, settings={"sac_config.gamma": 0.5}, resume=True)
    second = train(env, settings={"base_config.max_step": 500}, resume=True, log=lines.append)
    assert second.folder == first.folder and second.counters.env_steps >= 500
    assert "base_config.max_step: 300 -> 500" in lines
    assert load(second.folder).act(np.zeros(4)) in (0, 1)


def make_network(units: int = 5):
    """A network whose function can be imported."""
    return Blueprint(body=Mlp(units))


@pytest.mark.parametrize(
    ("blueprint", "settings", "units"),
    [
        (Blueprint(body=Mlp(7)), {}, 7),
        (lambda: Blueprint(body=Mlp(6)), {}, 6),
        (make_network, {"nn_config.units": 4}, 4),
    ],
    ids=["Blueprint", "lambda", "function"],
)
def test_an_id_is_trained_with_a_network_and_an_algorithm_of_the_program(blueprint, settings, units):
    result = train("CartPole-v1", settings=SHORT | settings, blueprint=blueprint, algorithm="A2C")
    assert read_settings(result.folder)["base_config"]["algorithm"] == "A2C"
    train("CartPole-v1", settings={"base_config.max_step": 400}, resume=True)
    policy = load(result.folder).agent.policy
    assert {tuple(parameter.shape) for parameter in policy.parameters()} >= {(units, 4), (units,)}


def test_callbacks_load_the_agent_of_the_moment_and_training_is_unchanged():
    actions, observations = [], np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)

    class Acting(Callback):
        def on_evaluation(self, results):
            generators = get_process_state()
            actions.append(self.load_agent().act(observations))  # sampled or greedy, as in evaluation
            assert get_process_state() == generators
            with pytest.raises(UserError, match="has no role 'other'"):
                self.load_agent("other")

        def on_checkpoint(self, checkpoint):
            actions.append(self.load_agent(disable_sample=True).act(observations))

    acting = Acting()
    settings = SHORT | {"base_config.evaluate_every": 100}
    one = train("gym/cartpole", name="a", settings=settings, callbacks=[acting])
    assert len(actions) >= 4
    np.testing.assert_array_equal(actions[-1], load(one.folder, disable_sample=True).act(observations))
    with pytest.raises(UserError, match="load_agent is for a run in training"):
        acting.load_agent()
    other = train("gym/cartpole", name="b", settings=settings)
    assert read_weights(one.folder) == read_weights(other.folder)


@pytest.mark.parametrize(
    ("env", "arguments", "message"),
    [
        (gymnasium.make("CartPole-v1"), {}, "env is a TimeLimit: pass a function that returns the environment"),
        (gymnasium.make_vec("CartPole-v1", 2), {}, "env is a .*VectorEnv: pass a function that returns the"),
        (lambda: gymnasium.make_vec("CartPole-v1", 2), {}, "lambda: the function returns a VectorEnv: return a single"),
        ("CartPole-v1", {"callbacks": [print]}, "callbacks contains a builtin_function_or_method: pass an instance"),
        ("CartPole-v1", {"callbacks": [Stopping]}, "callbacks contains the class Stopping: pass an instance"),
        ("CartPole-v1", {"callbacks": Stopping()}, "callbacks is a Stopping: pass a list"),
        ("CartPole-v1", {"callbacks": print}, "callbacks is a builtin_function_or_method: pass a list"),
        ("CartPole-v1", {"blueprint": Mlp(3)}, "blueprint is a Mlp: pass a Blueprint, or a function that returns one"),
        ("gym/cartpole", {"blueprint": Blueprint()}, "blueprint is for an id or a function"),
        ("Unheard-v0", {}, "env_name 'Unheard-v0': Environment `Unheard` doesn't exist"),
        ("Cart-v9", {}, "env_name 'Cart-v9': .*Cart"),
        ("gym/cartpol", {}, "no environment folder 'gym/cartpol'.*did you mean gym/cartpole"),
        ("gym/cartpole", {"resume": True, "variant": "default"}, "variant is for a new run"),
        ("gym/cartpole", {"resume": True, "replace": True}, "replace is for a new run"),
        ("CartPole-v1", {"resume": True, "blueprint": Blueprint()}, "blueprint is for a new run"),
        ("CartPole-v1", {"variant": "default"}, "variant 'default' needs an environment folder"),
        (make_short_cartpole, {"variant": "long"}, "variant 'long' needs an environment folder"),
    ],
)
def test_an_argument_of_a_wrong_kind_or_without_effect_is_an_error(env, arguments, message):
    with pytest.raises(UserError, match=f"^{message}"):
        train(env, settings=SHORT, **arguments)
    assert not Path("runs").exists()


def test_variants_are_read_from_the_folder():
    base = "default: {base_config: {env_type: PROBE, suggest_settings: false, env_name: chain, max_step: 100}}"
    folder = write_task(f"{base}\nlong: {{base_config: {{max_step: 200}}}}\n")
    assert train(folder, variant="long").counters.env_steps >= 200
    with pytest.raises(UserError, match="no variant 'short'"):
        train(folder, variant="short")


@pytest.mark.parametrize("env", ["gym/cartpole", "CartPole-v1", make_short_cartpole])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"acer_config.std": "learned"}, "acer_config.std is for continuous actions"),
        ({"sac_config.gamma": 0.9}, "sac_config.gamma is for algorithm"),
        ({"acer_config": {"gama": 1}}, "unknown setting acer_config.gama; did you mean acer_config.gamma"),
    ],
)
def test_an_invalid_setting_is_an_error_and_leaves_nothing(env, settings, message):
    with pytest.raises(UserError, match=f"^settings: {message}"):
        train(env, settings={**SHORT, "base_config.algorithm": "ACER", **settings})
    assert not list(Path().glob("runs/*/*/*"))


def test_signal_handlers_and_the_working_directory_stay():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)], Path.cwd()
    train("gym/cartpole", settings=SHORT)
    assert ([signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)], Path.cwd()) == before
