"""Versions and the commit of a run."""

import platform
import subprocess
import sys
from types import ModuleType

import pytest
import torch

from algorithm.config.loader import resolve
from algorithm.parts.provenance import describe_provenance, find_commit, read_versions


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


def test_the_commit_is_taken_from_the_first_folder_in_a_checkout(checkout, tmp_path):
    folder, head = checkout
    assert find_commit(folder / "envs" / "mine") == head
    assert find_commit(tmp_path / "not there", tmp_path, folder) == head
    assert find_commit(tmp_path) is None


def test_without_git_there_is_no_commit(checkout, monkeypatch):
    folder, _ = checkout
    monkeypatch.setenv("PATH", "")
    assert find_commit(folder) is None
    assert "commit" not in describe_provenance("mine/task", resolve([]).base, "default")


def test_versions_are_recorded_for_the_packages_in_use(monkeypatch):
    found = read_versions("GYM")
    assert (found["python"], found["torch"]) == (platform.python_version(), torch.__version__)
    assert "mlagents-envs" not in found and "mlagents-envs" in read_versions("Unity")
    monkeypatch.setitem(sys.modules, "minigrid", ModuleType("minigrid"))
    assert set(read_versions("GYM")) - set(found) <= {"minigrid"}


def test_an_origin_names_the_run():
    one = describe_provenance(
        "mine/task", resolve([("test", {"base_config": {"algorithm": "sac", "seed": 4}})]).base, "large"
    )
    assert (one["environment"], one["algorithm"], one["variant"], one["seed"]) == ("mine/task", "SAC", "large", 4)
