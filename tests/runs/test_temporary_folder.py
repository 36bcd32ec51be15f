"""Temporary folders end with their processes; those of killed processes are removed by later ones."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from algorithm.runs.temporary_folder import STARTING_SECONDS, make_temporary_folder

ROOT = Path(__file__).resolve().parents[2]
MAKE = """
import os, sys
from algorithm.runs.temporary_folder import make_temporary_folder
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
