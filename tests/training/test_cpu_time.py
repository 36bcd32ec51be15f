import subprocess
import sys
import time
from pathlib import Path

import pytest

from algorithm.training.cpu_time import measure_cpu_seconds

TICK = 0.05  # seconds, several times the resolution of the system's counters
# A process that uses 0.3 CPU seconds, while its child does the same, and waits until its input ends.
BUSY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=sys.stdin) if len(sys.argv) > 1 else None
while time.process_time() < 0.3:
    pass
print("used", flush=True)
sys.stdin.read()
if child:
    child.wait()
"""


def start_busy_processes():
    process = subprocess.Popen(
        [sys.executable, "-c", BUSY, BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert [process.stdout.readline().strip() for _ in range(2)] == ["used", "used"]
    return process


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has /proc")
def test_running_child_processes_and_their_children_count():
    before = measure_cpu_seconds()
    process = start_busy_processes()
    running = measure_cpu_seconds() - before
    process.communicate()
    assert running >= 0.6 - TICK
    assert measure_cpu_seconds() - before >= running - TICK


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not count them")
def test_child_processes_that_have_ended_count():
    before = measure_cpu_seconds()
    start_busy_processes().communicate()
    assert measure_cpu_seconds() - before >= 0.6 - TICK


def test_other_processes_do_not_count():
    command = f"import sys; sys.path.insert(0, {str(Path.cwd())!r})\n"
    command += "from algorithm.training.cpu_time import measure_cpu_seconds\nprint(measure_cpu_seconds())"
    shown = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True).stdout
    assert 0 < float(shown) < time.process_time()  # its parent, this process, has imported more
