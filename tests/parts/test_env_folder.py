"""The folder that a name or path refers to, the place of its runs, and suggestions for a missing folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from algorithm.errors import UserError
from algorithm.parts import env_folder
from algorithm.parts.run_folder import RunFolder, find_environment_folder

BASE = "{env_type: PROBE, suggest_settings: false, env_name: truncation, max_step: 60, n_envs: 3}"
CONFIG = f"default: {{base_config: {BASE}}}\n"


def make(folder: Path, config: str = CONFIG) -> Path:
    """Create a folder that contains settings only."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(config)
    return folder


@pytest.fixture
def outside(tmp_path, monkeypatch) -> Path:
    """Create a folder outside of ./envs, and change the working directory."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return make(tmp_path / "my" / "task")


@pytest.fixture
def trained(outside, command) -> Path:
    """Train the run `a` in the folder outside of ./envs; return this folder."""
    assert f"play it:    python main.py {outside} -n a --run" in command("../my/task -n a").out
    return outside


def test_a_name_is_a_folder_below_envs():
    assert env_folder.locate_environment("gym/cartpole") == "gym/cartpole"
    assert find_environment_folder("gym/cartpole") == env_folder.PROJECT_ENVS / "gym/cartpole"
    make(Path("envs/gym/cartpole"))
    assert find_environment_folder("gym/cartpole") == Path("envs/gym/cartpole")
    assert env_folder.get_run_group("gym/cartpole") == "gym/cartpole"


def test_the_path_of_a_folder_below_envs_is_converted_to_its_name_unless_that_is_ambiguous(tmp_path):
    make(Path("envs/mine/task"))
    for text in ("./envs/mine/task", "envs/mine/task/", "./mine/task", "envs/mine/task/config.yaml"):
        assert env_folder.locate_environment(text) == "mine/task"
    assert env_folder.locate_environment(f"../{tmp_path.name}/envs/mine/task") == "mine/task"
    assert env_folder.locate_environment(str(tmp_path / "envs/mine/task")) == "mine/task"
    path = (env_folder.PROJECT_ENVS / "gym/cartpole").as_posix()
    assert env_folder.locate_environment(path) == "gym/cartpole"
    make(Path("envs/gym/cartpole"))
    assert env_folder.locate_environment(path) == path
    assert env_folder.locate_environment("envs/gym/cartpole") == "gym/cartpole"


def test_another_path_becomes_absolute_and_its_runs_have_the_last_two_parts(outside, monkeypatch):
    for text in ("../my/task", str(outside), "../my/../my/task/"):
        assert env_folder.locate_environment(text) == outside.as_posix()
    monkeypatch.chdir(outside)
    assert env_folder.locate_environment(".") == outside.as_posix()
    monkeypatch.chdir(outside.parents[1])
    assert env_folder.locate_environment("my/task") == outside.as_posix()
    assert env_folder.get_run_group(outside.as_posix()) == "my/task"
    assert env_folder.get_run_group("/home/.hidden/task") == env_folder.get_run_group("/task") == "task"
    with pytest.raises(UserError, match="not a plain name"):
        env_folder.get_run_group("/home/my/.task")


def test_a_path_that_starts_with_a_dot_is_searched_in_the_working_directory_first(outside, monkeypatch):
    monkeypatch.chdir(outside.parents[1])
    make(Path("envs/my/task"))
    assert env_folder.locate_environment("my/task") == "my/task"
    assert env_folder.locate_environment("./my/task") == outside.as_posix()


def test_a_folder_elsewhere_is_trained_played_resumed_and_listed_by_its_path(trained, command):
    assert Path("runs/my/task/a", env_folder.ORIGIN_FILE).read_text() == f"{trained.as_posix()}\nformat 2\n"
    assert command.json(f"{trained} --run")["evaluation"]["agent"]["mean"] == 10
    assert command.json("../my/task -n a --resume --max_step 90")["env_steps"] == 90
    assert [run["run"] for run in command.json("list ../my/task")["runs"]] == ["runs/my/task/a"]
    shutil.rmtree(trained)  # runs do not need the folder any more, by its path or by the path of their group
    command("../my/task -n a --run")
    command("my/task -n a --run")


def test_runs_of_two_folders_with_the_same_folder_of_runs_are_distinguished(trained, tmp_path, command):
    other = make(tmp_path / "other" / "my" / "task")
    for arguments in ("--run -n a", "--resume -n a", "-n a", "-n a --force"):
        error = command.fail(f"{other} {arguments}")
        assert error.startswith(f"run {Path('runs/my/task/a')} was trained in {trained.as_posix()}, not in {other}")
    assert "there is no run" in command.fail(f"{other} --run")
    assert "there is no run" in command.fail(f"list {other}")
    assert command.json(f"{other} -n b")["run"] == "runs/my/task/b"
    assert [run["run"] for run in command.json(f"list {other}")["runs"]] == ["runs/my/task/b"]
    assert RunFolder.find(trained.as_posix(), None).given_path == Path("runs/my/task/a")
    assert len(command.json("list")["runs"]) == 2


def test_a_folder_that_was_moved_keeps_its_runs_and_one_without_a_record_is_accepted(trained, tmp_path, command):
    moved = tmp_path / "elsewhere" / "my" / "task"
    moved.parent.mkdir(parents=True)
    trained.rename(moved)
    assert command.json(f"{moved} --run")["run"] == "runs/my/task/a"
    for damage in (lambda path: path.write_bytes(b"\xff"), os.remove):
        damage(Path("runs/my/task/a", env_folder.ORIGIN_FILE))
        assert command.json(f"{moved} --run")["run"] == "runs/my/task/a"


def test_a_run_folder_of_another_format_is_refused(trained, command):
    Path("runs/my/task/a", env_folder.ORIGIN_FILE).write_text(f"{trained.as_posix()}\nformat 7\n")
    for line in ("../my/task --run", "../my/task -n a --resume", "export ../my/task", "report ../my/task"):
        assert "runs/my/task/a has format 7 of run folders, which another version of this" in command.fail(line)
    assert [run["run"] for run in command.json("list ../my/task")["runs"]] == ["runs/my/task/a"]


@pytest.mark.parametrize(
    ("text", "folders"),
    [
        ("CartPole-v1", ["gym/cartpole"]),
        ("CartPole-v0", ["gym/cartpole"]),
        ("LunarLander-v3", ["gym/lunar_lander", "gym/lunar_lander_continuous"]),
        ("cartpole", ["gym/cartpole"]),
        ("gym/cartpol", ["gym/cartpole"]),
        ("Pong", ["atari/pong"]),
        ("breakout", ["atari/breakout", "minatar/breakout"]),
        ("InvertedPendulum-v5", ["mujoco/inverted_pendulum"]),
    ],
)
def test_an_id_or_a_name_suggests_matching_folders(text, folders, command):
    advice = str(env_folder.make_unknown_error(text)).rpartition("; ")[2]
    assert advice == f"did you mean {' or '.join(folders)}?"
    assert advice in command.fail(["tune", text])
    assert all(env_folder.find_folder(folder) for folder in folders)
    is_named = text in ("CartPole-v1", "LunarLander-v3", "InvertedPendulum-v5", "Pong")
    assert env_folder.find_folders_of_id(text) == (folders if is_named else [])


@pytest.mark.parametrize(
    ("text", "folder", "env_name"),
    [
        ("Blackjack-v1", "gym/blackjack", "Blackjack-v1"),
        ("ALE/Tetris-v5", "ale/tetris", "ALE/Tetris-v5"),
        ("minigrid:MiniGrid-Empty-5x5-v0", "minigrid/mini_grid_empty_5x5", "minigrid:MiniGrid-Empty-5x5-v0"),
        ("MiniGrid-Empty-5x5-v0", "minigrid/mini_grid_empty_5x5", "minigrid:MiniGrid-Empty-5x5-v0"),
    ],
)
def test_an_id_without_a_folder_suggests_the_command_that_writes_one(text, folder, env_name, command):
    advice = f"write one with: python main.py init {folder} --set base_config.env_name={env_name}\n"
    assert command.fail([text, "-c", "sac"]).endswith(advice)


def test_an_id_is_an_environment_unless_a_folder_has_its_name(outside):
    assert env_folder.locate_environment("Any-v0") == "Any-v0" and env_folder.is_id("Any-v0")
    assert env_folder.locate_environment("MiniGrid-Empty-5x5-v0") == "minigrid:MiniGrid-Empty-5x5-v0"
    assert not env_folder.is_id("gym/cartpole") and not env_folder.is_id("Any")
    make(Path("envs/a/Any-v0"))
    assert find_environment_folder(env_folder.locate_environment("a/Any-v0")) == Path("envs/a/Any-v0")
    assert not env_folder.is_id("a/Any-v0") and env_folder.is_id("Any-v0")
    make(Path("Any-v0"))
    assert env_folder.locate_environment("Any-v0") == Path("Any-v0").absolute().as_posix()


def test_the_runs_of_an_id_have_a_valid_folder_and_are_told_apart_from_those_of_another():
    groups = {"Any-v0": "Any-v0", "a/Any-v0": "a/Any-v0", "a.b:Any-v0": "a.b/Any-v0", "a:b/Any-v0": "a/b/Any-v0"}
    assert {env_id: env_folder.get_run_group(env_id) for env_id in groups} == groups
    for env_id in ("con:Any-v0", "nul/Any-v0", "..:Any-v0", f"{'x' * 101}:Any-v0"):
        with pytest.raises(UserError, match="not a valid folder for its runs"):
            env_folder.get_run_group(env_id)
    run = Path("runs/a/Any-v0/first")
    run.mkdir(parents=True)
    (run / env_folder.ORIGIN_FILE).write_text("a:Any-v0\n")
    assert env_folder.is_run_of(run, "a:Any-v0") and not env_folder.is_run_of(run, "a/Any-v0")


@pytest.mark.parametrize("text", ["a*b", "x" * 300, "a\0b", "con/x", ""], ids=range(5))
def test_an_unknown_name_is_an_error_with_all_folders(text, command):
    for words in ([text], [text, "--run"], ["list", text]):
        assert command.fail(words).rstrip().endswith(", ".join(env_folder.list_environments()))


def test_a_missing_folder_and_a_missing_run_of_an_id_are_errors_of_one_line(command):
    absent = str(Path("nothing").absolute())
    assert "with a config.yaml; give its name below envs/, or its path" in command.fail(absent)
    assert "train one with: python main.py CartPole-v1" in command.fail("CartPole-v1 --run")


def test_an_unreadable_config_does_not_prevent_a_suggestion():
    make(Path("envs/mine/broken"), "default: {base_config: {env_name: Lost-v0")
    assert "did you mean mine/broken?" in str(env_folder.make_unknown_error("Lost-v0"))
