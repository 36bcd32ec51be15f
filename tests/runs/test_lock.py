"""One process trains in a run folder, and the lock ends with it, however it ends."""

import subprocess
import sys
from pathlib import Path

import pytest

from algorithm.errors import UserError
from algorithm.runs.lock import FolderLock

ROOT = Path(__file__).resolve().parents[2]
HOLD = """
import sys
from pathlib import Path
from algorithm.runs.lock import FolderLock
with FolderLock(Path(sys.argv[1]), "a"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock of tmp_path until its standard input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout.readline().strip() == b"held"
    yield process
    process.kill()
    process.communicate()


def test_another_process_is_named_as_long_as_it_holds_the_lock(tmp_path, holder):
    lock = FolderLock(tmp_path, "runs/task/a")
    for _ in range(2):
        with pytest.raises(UserError, match=f"run runs/task/a is in training in process {holder.pid}:"), lock:
            pytest.fail("it was free")
    holder.communicate()
    with lock:
        assert (tmp_path / ".lock").is_file()


def test_the_lock_of_a_process_that_was_killed_is_free(tmp_path, holder):
    holder.kill()  # which nothing in it notices
    holder.wait()
    with FolderLock(tmp_path, "a"):
        pass


def test_a_lock_may_be_held_again_and_again(tmp_path):
    lock = FolderLock(tmp_path, "a")
    for _ in range(2):
        with lock, pytest.raises(UserError), FolderLock(tmp_path, "a"):
            pytest.fail("it was free")
