"""One process at a time uses a folder; locks are released, and temporary folders removed, when it ends in any way."""

import os
import subprocess
import sys
import tempfile
from errno import ENOLCK, ENOSYS, EOPNOTSUPP
from pathlib import Path

import pytest

from algorithm.errors import UserError
from algorithm.parts import lock as module
from algorithm.parts.lock import STARTING_SECONDS, FolderLock, check_links, make_temporary_folder

ROOT = Path(__file__).resolve().parents[2]
HOLD = """
import sys
from pathlib import Path
from algorithm.parts.lock import FolderLock
with FolderLock(Path(sys.argv[1]), "a"):
    print("held", flush=True)
    sys.stdin.read()
"""


def run_python(code: str, argument: str) -> tuple[str, str]:
    """Run code in another process, and return what it printed."""
    command = [sys.executable, "-c", code, argument]
    process = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return process.stdout, process.stderr


@pytest.fixture
def holder(tmp_path):
    """Start another process that holds the lock of tmp_path until its standard input ends."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline().strip() == b"held"
    yield process
    process.kill()
    process.communicate()


@pytest.mark.parametrize("end", ["kill", "communicate"])  # without a chance to release the lock, and with one
def test_the_process_that_holds_a_lock_is_named_until_it_ends(tmp_path, holder, end):
    lock = FolderLock(tmp_path, "runs/task/a")
    for _ in range(2):
        assert lock.is_held_elsewhere()
        with pytest.raises(UserError, match=f"run runs/task/a is in training in process {holder.pid}:"), lock:
            pytest.fail("it was free")
    getattr(holder, end)()
    holder.wait()
    assert not lock.is_held_elsewhere()
    for _ in range(2):
        with lock, pytest.raises(UserError), FolderLock(tmp_path, "a"):
            pytest.fail("it was free")
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
    (line,) = caplog.messages
    assert line.startswith("this system, or its file system, has no file locks: ")


WITHOUT_FCNTL = """
import pkgutil, sys
sys.modules["fcntl"] = None
import algorithm
for module in pkgutil.walk_packages(algorithm.__path__, "algorithm."):
    if "__main__" not in module.name:
        __import__(module.name)
"""


def test_every_module_can_be_imported_and_a_folder_is_locked_without_fcntl(tmp_path):
    out, err = run_python(f"{WITHOUT_FCNTL}{HOLD}", str(tmp_path))
    assert out == "held\n", err
    assert err.count("no file locks") == 1


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


def make_old(folder):
    past = (folder / ".lock").stat().st_mtime - STARTING_SECONDS
    os.utime(folder / ".lock", (past, past))


@pytest.mark.parametrize("has_user_numbers", [True, False])
def test_the_folder_of_a_process_is_removed_when_it_exits_or_by_a_later_one(tmp_path, has_user_numbers, monkeypatch):
    out, _ = run_python(MAKE, "exits")
    assert out.startswith(str(tmp_path)) and not list(tmp_path.iterdir())
    run_python(MAKE, "killed")
    (killed,) = tmp_path.iterdir()
    if not has_user_numbers:
        monkeypatch.delattr(os, "geteuid", raising=False)
    running = make_temporary_folder("samara-test-")
    assert os.name == "nt" or running.stat().st_mode & 0o777 == 0o700
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


def plant(folder, victim=None, mode=0o700):
    """Make a folder as another user of a shared place could, with a link as its lock, or an old lock."""
    folder.mkdir()
    folder.chmod(mode)
    if victim:
        (folder / ".lock").symlink_to(victim)
    else:
        (folder / ".lock").touch()
        make_old(folder)
    return folder


@pytest.mark.skipif(os.name == "nt", reason="each user has a folder for temporary files")
def test_folders_that_another_user_may_have_written_are_left_alone(tmp_path, monkeypatch):
    (victim := tmp_path / "victim").write_text("keep")
    os.utime(victim, (0, 0))
    (linked := tmp_path / "samara-test-linked").symlink_to(elsewhere := plant(tmp_path / "elsewhere"))
    plant(tmp_path / "samara-test-private", victim)
    shared, foreign = plant(tmp_path / "samara-test-shared", mode=0o770), plant(tmp_path / "samara-test-foreign")
    user = os.geteuid()
    if user == 0:
        os.chown(foreign, 12345, -1)
    make_temporary_folder("samara-test-")
    assert victim.read_text() == "keep"
    assert linked.exists() and elsewhere.exists() and shared.exists()
    assert foreign.exists() == (user == 0)
