"""One process at a time trains in a run folder; the lock is released when the process ends in any way."""

import subprocess
import sys
from errno import ENOLCK, ENOSYS, EOPNOTSUPP
from pathlib import Path

import pytest

from algorithm.errors import UserError
from algorithm.runs import lock as module
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
    """Start another process that holds the lock of tmp_path until its standard input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout.readline().strip() == b"held"
    yield process
    process.kill()
    process.communicate()


def test_the_process_that_holds_the_lock_is_named(tmp_path, holder):
    lock = FolderLock(tmp_path, "runs/task/a")
    for _ in range(2):
        with pytest.raises(UserError, match=f"run runs/task/a is in training in process {holder.pid}:"), lock:
            pytest.fail("it was free")
    holder.communicate()
    with lock:
        assert (tmp_path / ".lock").is_file()


def test_the_lock_of_a_killed_process_is_released(tmp_path, holder):
    holder.kill()  # without a chance to release the lock
    holder.wait()
    with FolderLock(tmp_path, "a"):
        pass


def test_a_lock_can_be_acquired_repeatedly(tmp_path):
    lock = FolderLock(tmp_path, "a")
    for _ in range(2):
        with lock, pytest.raises(UserError), FolderLock(tmp_path, "a"):
            pytest.fail("it was free")


def test_a_lock_that_another_process_holds_is_found_without_waiting(tmp_path, holder):
    lock = FolderLock(tmp_path, "a")
    assert lock.is_held_elsewhere()
    holder.communicate()
    assert not lock.is_held_elsewhere()
    with lock:
        assert not lock.is_held_elsewhere()
    assert not FolderLock(tmp_path / "missing", "a").is_held_elsewhere()


@pytest.mark.parametrize("error", [ENOLCK, EOPNOTSUPP, ENOSYS])
def test_a_file_system_without_locks_is_one_line(tmp_path, monkeypatch, caplog, error):
    def refuse(descriptor, operation):
        raise OSError(error, "no locks")

    monkeypatch.setattr("fcntl.flock", refuse)
    module._warn_without_locks.cache_clear()
    for _ in range(2):
        with FolderLock(tmp_path, "a") as lock:
            assert not lock.is_held_elsewhere()
    assert [line.partition(": ")[0] for line in caplog.messages] == [
        "this system, or its file system, has no file locks"
    ]


WITHOUT_FCNTL = """
import pkgutil, sys
sys.modules["fcntl"] = None
import algorithm
for module in pkgutil.walk_packages(algorithm.__path__, "algorithm."):
    if "__main__" not in module.name:
        __import__(module.name)
from errno import ENOLCK, ENOSYS, EOPNOTSUPP
from pathlib import Path
from algorithm.runs.lock import FolderLock
with FolderLock(Path(sys.argv[1]), "a"):
    print("held")
"""


def test_every_module_can_be_imported_without_fcntl(tmp_path):
    command = [sys.executable, "-c", WITHOUT_FCNTL, str(tmp_path)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.stdout == "held\n", process.stderr
    assert process.stderr.count("no file locks") == 1
