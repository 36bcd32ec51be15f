"""Versions and the commit of a run, and the record of the processes that have trained it."""

import json
import os
import platform
import subprocess
import sys
from types import ModuleType

import pytest
import torch

from algorithm.config.loader import resolve
from algorithm.config.sections import BaseConfig
from algorithm.parts import provenance


@pytest.fixture
def checkout(tmp_path):
    """A git checkout with one commit, and that commit."""
    folder = tmp_path / "checkout"
    (folder / "envs" / "mine").mkdir(parents=True)
    author = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    try:
        subprocess.run(["git", "init", "-q", str(folder)], check=True)
    except FileNotFoundError:
        pytest.skip("without git")
    subprocess.run(["git", "-C", str(folder), *author, "commit", "-q", "--allow-empty", "-m", "a"], check=True)
    return folder, (folder / ".git" / next((folder / ".git").glob("refs/heads/*"))).read_text().strip()


def test_the_commit_is_taken_from_the_first_folder_in_a_checkout_if_git_exists(checkout, tmp_path, monkeypatch):
    folder, head = checkout
    assert provenance.find_commit(folder / "envs" / "mine") == head
    assert provenance.find_commit(tmp_path / "not there", tmp_path, folder) == head
    assert provenance.find_commit(tmp_path) is None
    monkeypatch.setenv("PATH", "")
    assert provenance.find_commit(folder) is None
    assert "commit" not in provenance.describe_provenance("mine/task", make_base(), "default")


def test_versions_are_recorded_for_the_packages_in_use(monkeypatch):
    found = provenance.read_versions("GYM")
    assert (found["python"], found["torch"]) == (platform.python_version(), torch.__version__)
    assert "mlagents-envs" not in found and "mlagents-envs" in provenance.read_versions("Unity")
    monkeypatch.setitem(sys.modules, "minigrid", ModuleType("minigrid"))
    assert set(provenance.read_versions("GYM")) - set(found) <= {"minigrid"}


def make_base(**base) -> BaseConfig:
    return resolve([("test", {"base_config": base})]).base


def test_an_origin_names_the_run():
    one = provenance.describe_provenance("mine/task", make_base(algorithm="sac", seed=4), "large")
    assert (one["environment"], one["algorithm"], one["variant"], one["seed"]) == ("mine/task", "SAC", "large", 4)


def test_each_session_is_a_line(tmp_path):
    assert provenance.read_sessions(tmp_path, pytest.fail) == []  # of an earlier version
    (tmp_path / "environment.txt").write_text("gym/cartpole\n")
    for env_steps in (0, 500):
        provenance.record_session(tmp_path, make_base(env_name="CartPole-v1", seed=3), env_steps)
    first, second = provenance.read_sessions(tmp_path, pytest.fail)
    assert (first["env_steps"], second["env_steps"], second["seed"]) == (0, 500, 3)
    assert first["versions"]["python"] == platform.python_version()
    assert first["machine"] == provenance.describe_machine() and first["started"].endswith("+00:00")


def test_the_name_of_the_machine_is_not_recorded():
    machine = provenance.describe_machine()
    assert machine["cores"] == os.cpu_count() and machine["processor"]
    assert platform.node() not in json.dumps(machine).split('"')
