"""Runs in network namespaces that have only loopback, so that Ray reaches nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMESPACE = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
WITH_LOOPBACK = [*NAMESPACE, "bash", "-c", 'ip link set lo up && exec "$@"', "bash"]
MAIN = [sys.executable, str(ROOT / "main.py")]
HEAD, OTHER = "10.0.0.1", "10.0.0.2"  # addresses of two simulated machines
ON_OTHER = """
on_other() { nsenter --target $(pgrep --exact --full "sleep infinity") --net --mount --pid --wd "$@"; }
"""
# Connect the namespace to the one of a second machine, which has its own network, processes and files of Ray. No packet
# leaves the two: the default routes only let Ray find the addresses of the machines.
LINK = f"""
set -e
mkdir -p /tmp/ray
unshare --net --mount --pid --fork --mount-proc sh -c 'mount -t tmpfs tmpfs /tmp/ray && exec sleep infinity' &
until other=$(pgrep --exact --full "sleep infinity"); do sleep 0.01; kill -0 $!; done
{ON_OTHER}
ip link add near type veth peer name far netns $other
ip address add {HEAD}/24 dev near
ip link set near up
ip route add default via {OTHER}
on_other ip link set lo up
on_other ip address add {OTHER}/24 dev far
on_other ip link set far up
on_other ip route add default via {HEAD}
"""


def find_obstacle() -> str | None:
    """Return why runs on Ray cannot be tested here; None if they can."""
    if find_spec("ray") is None:
        return "Ray is not installed"
    if not shutil.which("unshare") or not shutil.which("ip"):
        return "needs unshare (util-linux) and ip (iproute2)"
    return _try("true")


def find_obstacle_to_link() -> str | None:
    """Return why two machines cannot be simulated here; None if they can."""
    if not shutil.which("nsenter") or not shutil.which("pgrep"):
        return "needs nsenter (util-linux) and pgrep (procps)"
    return _try("bash", "-c", LINK)


def _try(*command: str) -> str | None:
    """Return why a command fails in a namespace; None if it succeeds."""
    made = subprocess.run([*WITH_LOOPBACK, *command], capture_output=True, text=True)
    return f"no namespace may be made: {made.stderr.strip()}" if made.returncode else None


class NamespaceRun:
    """A command in a namespace, with its output in a file. All its processes end with it."""

    def __init__(self, *command: str):
        self.out = Path("out.txt")
        environ = {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
        with self.out.open("w") as out:
            self.process = subprocess.Popen([*WITH_LOOPBACK, *command], stdout=out, stderr=out, env=environ)

    def wait_until(self, condition: Callable[[], Any], seconds: float = 200) -> Any:
        """Wait until `condition` returns a true value, and return it."""
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            assert self.process.poll() is None and time.monotonic() < deadline, self.out.read_text()
            time.sleep(0.05)
        return value

    def wait_for(self, text: str) -> None:
        """Wait until the output contains `text`."""
        self.wait_until(lambda: text in self.out.read_text())

    def find(self, part: str) -> list[int]:
        """Return the ids of the processes of this run whose command line contains `part`."""
        return [
            pid
            for pid in list_descendants(self.process.pid)
            if part in _read(f"/proc/{pid}/cmdline").replace("\0", " ")
        ]

    def execute(self, *command: str) -> None:
        """Execute a command in the namespace of the first machine."""
        first = list_descendants(self.process.pid)[0]
        subprocess.run(["nsenter", f"--target={first}", "--net", "--pid", "--mount", *command], check=True)

    def wait(self, seconds: float = 200) -> int:
        """Wait for the end. Return the exit status."""
        return self.process.wait(seconds)

    def kill(self) -> None:
        """Kill all processes, if they have not ended, and wait until the system has ended them."""
        pids = list_descendants(self.process.pid)
        self.process.kill()
        self.process.wait()
        while any(_read(f"/proc/{pid}/cmdline") for pid in pids):
            time.sleep(0.01)


@pytest.fixture
def two_machines() -> None:
    """Skip the test if two machines cannot be simulated."""
    if obstacle := find_obstacle_to_link():
        pytest.skip(obstacle)


@pytest.fixture
def start_run() -> Iterator[object]:
    """Return a function that starts a command in a namespace; skip the test if none may be made."""
    if obstacle := find_obstacle():
        pytest.skip(obstacle)
    runs: list[NamespaceRun] = []

    def start(*command: str) -> NamespaceRun:
        runs.append(NamespaceRun(*command))
        return runs[-1]

    yield start
    for run in runs:
        run.kill()


def list_descendants(pid: int) -> list[int]:
    """Return the ids of all processes that a process has started, directly or not."""
    children = [int(child) for child in _read(f"/proc/{pid}/task/{pid}/children").split()]
    return [*children, *(below for child in children for below in list_descendants(child))]


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
