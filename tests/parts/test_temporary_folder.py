"""Temporary folders end with their processes; those of killed processes are removed by later ones."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from algorithm.parts.lock import STARTING_SECONDS, make_temporary_folder

ROOT = Path(__file__).resolve().parents[2]
MAKE = """
import os, sys
from algorithm.parts.lock import make_temporary_folder
print(make_temporary_folder("samara-test-"), flush=True)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), 9)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def make_in_process(end):
    """Make a folder in another process, which exits or is killed."""
    process = subprocess.run([sys.executable, "-c", MAKE, end], cwd=ROOT, capture_output=True, text=True)
    return process.stdout.strip()


def make_old(folder):
    past = (folder / ".lock").stat().st_mtime - STARTING_SECONDS
    os.utime(folder / ".lock", (past, past))


def test_the_folder_of_a_process_that_exits_is_removed(tmp_path):
    assert make_in_process("exits").startswith(str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_the_folder_of_a_process_that_was_killed_is_removed_by_a_later_one(tmp_path):
    make_in_process("killed")
    (killed,) = tmp_path.iterdir()
    running = make_temporary_folder("samara-test-")
    make_old(running)
    (unlocked := tmp_path / "samara-test-1").mkdir()
    make_temporary_folder("samara-test-")
    assert killed.exists()  # it may be one that another process is about to lock
    make_old(killed)
    make_temporary_folder("samara-other-")
    assert killed.exists()
    make_temporary_folder("samara-test-")
    assert not killed.exists()
    assert running.exists() and unlocked.exists()


def plant(folder, victim, mode=0o700):
    """Make a folder as another user of a shared place could, with a link as its lock."""
    folder.mkdir()
    folder.chmod(mode)
    (folder / ".lock").symlink_to(victim)


@pytest.mark.skipif(os.name == "nt", reason="each user has a folder for temporary files")
def test_folders_that_another_user_may_have_written_are_left_alone(tmp_path, monkeypatch):
    (victim := tmp_path / "victim").write_text("keep")
    os.utime(victim, (0, 0))
    elsewhere = tmp_path / "elsewhere"
    plant(elsewhere, victim)
    (linked := tmp_path / "samara-test-linked").symlink_to(elsewhere)
    plant(tmp_path / "samara-test-private", victim)
    plant(shared := tmp_path / "samara-test-shared", victim, 0o770)
    plant(foreign := tmp_path / "samara-test-foreign", victim)
    for folder in (shared, foreign, elsewhere):
        (folder / ".lock").unlink()
        (folder / ".lock").touch()
        make_old(folder)
    user = os.geteuid()
    if user == 0:
        os.chown(foreign, 12345, -1)
    make_temporary_folder("samara-test-")
    assert victim.read_text() == "keep"
    assert linked.exists() and elsewhere.exists() and shared.exists()
    assert foreign.exists() == (user == 0)


def test_a_folder_is_for_its_user_only():
    folder = make_temporary_folder("samara-test-")
    assert os.name == "nt" or folder.stat().st_mode & 0o777 == 0o700


def test_a_system_without_user_numbers_has_temporary_folders(tmp_path, monkeypatch):
    make_in_process("killed")
    (killed,) = tmp_path.iterdir()
    make_old(killed)
    monkeypatch.delattr(os, "geteuid", raising=False)
    make_temporary_folder("samara-test-")
    assert not killed.exists()
