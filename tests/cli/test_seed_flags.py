"""The flags that users of the seeds know, and what each of them selects or sets."""

from pathlib import Path

import pytest

from algorithm.cli import main
from algorithm.cli.parser import parse_arguments
from algorithm.config.loader import resolve
from algorithm.config.yaml_layers import merge
from algorithm.parts.run_folder import RunFolder
from algorithm.runs import playing, run_requests
from algorithm.runs.commands import make_request
from tests.task_folder import write_task

PROBE = {"base_config": {"env_type": "PROBE", "env_name": "truncation"}}
SETTINGS = {
    "-n a": {"name": "a"},
    "--name a": {"name": "a"},
    "--agents 4": {"n_envs": 4},
    "--max_iter 7": {"max_iter": 7},
    "--device gpu": {"device": "gpu"},
    "--nn other.py": {"nn": "other.py"},
    "--env_args limit=3 names=[a,b]": {"env_args": {"limit": 3, "names": ["a", "b"]}},
    "-p 5010": {"unity_args": {"base_port": 5010}},
    "--port 5010": {"unity_args": {"base_port": 5010}},
    "--editor": {"unity_args": {"build_path": "editor"}},
}
PLAYED = {
    "": {},
    "--render": {"render": True, "n_envs": 1},
    "--render --agents 2": {"render": True, "n_envs": 2},
    "--disable_sample": {"greedy": True},
    "--ckpt 500": {"ckpt": "500"},
    "--max_iter 2": {"episodes": 40},
    "--max_iter 2 --agents 5": {"episodes": 10, "n_envs": 5},
}
ARGUMENTS = ("settings", "folder", "episodes", "greedy", "render", "ckpt", "n_envs", "log")  # of `play`


def read(words: str):
    """Return the options and the request of a command line, and the settings of its flags."""
    _, options = parse_arguments(["gym/cartpole", *words.split()])
    tree: dict = {}
    for _, layer in make_request(options).layers:
        tree = merge(tree, layer)
    return options, make_request(options), tree


@pytest.mark.parametrize("words", SETTINGS)
def test_a_flag_sets_its_settings(words):
    assert read(words)[2] == {"base_config": SETTINGS[words]}


def test_c_selects_a_variant_and_repeat_several_runs():
    _, request, tree = read("-c fast --repeat 3")
    assert (request.variant, request.repeat, tree) == ("fast", 3, {})
    assert read("")[1].variant == "default"


@pytest.mark.parametrize("mode", ["--run", "--resume"])
def test_n_selects_an_existing_run_and_use_env_nn_the_network_of_its_folder(mode):
    _, request, tree = read(f"{mode} -n a --use_env_nn --nn other.py")
    assert (request.name, request.use_env_nn, tree) == ("a", True, {"base_config": {"nn": "other.py"}})
    assert not read(mode)[1].use_env_nn and read(mode)[1].name is None


def test_logger_in_file_applies_to_training_and_playing():
    assert all(read(f"--logger_in_file {mode}")[0].logger_in_file for mode in ("", "--run", "--resume"))
    assert not read("")[0].logger_in_file


@pytest.mark.parametrize("words", PLAYED)
def test_a_flag_changes_how_a_run_is_played(words, monkeypatch):
    played = []
    write_task("default: {}\n")
    Path("runs/mine/task/a").mkdir(parents=True)
    Path("runs/mine/task/a/config.yaml").write_text("base_config: {env_type: PROBE, env_name: truncation}\n")
    sampled = {**PROBE["base_config"], "evaluate_greedy": False}
    settings = resolve([("test", {"base_config": sampled, "goal": {"return": 10, "evaluation_episodes": 30}})])
    folder = RunFolder(Path("runs/mine/task/a"))
    monkeypatch.setattr(run_requests, "find_run", lambda request, log: (folder, settings))
    monkeypatch.setattr(
        playing, "play", lambda *args, **_: played.append(dict(zip(ARGUMENTS, args, strict=True))) or {}
    )
    assert main.main(["mine/task", "--run", *words.split()]) == 0
    expected = {"episodes": 30, "greedy": False, "render": False, "ckpt": None, "n_envs": 20, **PLAYED[words]}
    assert {name: played[0][name] for name in expected} == expected
