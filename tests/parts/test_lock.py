"""One process at a time trains in a run folder; the lock is released when the process ends in any way."""

import os
import subprocess
import sys
from errno import ENOLCK, ENOSYS, EOPNOTSUPP
from pathlib import Path

import pytest

from algorithm.errors import UserError
from algorithm.parts import lock as module
from algorithm.parts.lock import FolderLock, check_links

ROOT = Path(__file__).resolve().parents[2]
HOLD = """
import sys
from pathlib import Path
from algorithm.parts.lock import FolderLock
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
from algorithm.parts.lock import FolderLock
with FolderLock(Path(sys.argv[1]), "a"):
    print("held")
"""


def test_every_module_can_be_imported_without_fcntl(tmp_path):
    command = [sys.executable, "-c", WITHOUT_FCNTL, str(tmp_path)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.stdout == "held\n", process.stderr
    assert process.stderr.count("no file locks") == 1


PLANTS = {
    "a link": lambda lock, victim: lock.symlink_to(victim),
    "a link to nothing": lambda lock, victim: lock.symlink_to(victim.with_name("created")),
    "a second name": lambda lock, victim: lock.hardlink_to(victim),
    "a pipe": lambda lock, victim: os.mkfifo(lock),
}


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege")
@pytest.mark.parametrize("has_flag", [True, False], ids=["with O_NOFOLLOW", "without it"])
@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
def test_what_was_planted_as_a_lock_is_not_written(tmp_path, monkeypatch, plant, has_flag):
    victim, folder = tmp_path / "victim", tmp_path / "run"
    victim.write_text("1234 and more")
    folder.mkdir()
    plant(folder / ".lock", victim)
    if not has_flag:  # as on Windows
        monkeypatch.setattr(module, "NO_FOLLOW", 0)
    with pytest.raises(UserError, match=r"run/.lock is not a lock.* remove it$"), FolderLock(folder, "a"):
        pytest.fail("it was acquired")
    assert not FolderLock(folder, "a").is_held_elsewhere()
    assert victim.read_text() == "1234 and more"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "victim"]


@pytest.mark.skipif(os.name == "nt", reason="links need a privilege")
def test_a_link_out_of_a_folder_is_one_line(tmp_path):
    (folder := tmp_path / "folder").mkdir()
    (secret := tmp_path / "secret.txt").touch()
    (folder / "inside").symlink_to("a.txt")
    (tmp_path / "linked").symlink_to(folder)
    check_links(folder)
    check_links(tmp_path / "linked")
    (folder / "metrics.csv").symlink_to(secret)
    with pytest.raises(UserError, match=r"metrics.csv is a link to .*secret.txt, and a run writes only into its own"):
        check_links(folder)
