"""The seconds of the phases of a run, and the CPU seconds of its processes."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from algorithm.training import timer as timer_module
from algorithm.training.actor import Actor
from algorithm.training.timer import PHASES, Timer, measure_cpu_seconds
from tests.adapters.configs import config
from tests.doubles import ParityAgent, collect_ticks, make_components
from tests.fakes import Skipping


@pytest.fixture
def wait(monkeypatch):
    """A clock that the test advances."""
    now = [100.0]
    monkeypatch.setattr(timer_module, "perf_counter", lambda: now[0])

    def wait(seconds):
        now[0] += seconds

    return wait


def test_time_counts_for_the_phase_that_ended(wait):
    timer = Timer()
    wait(1)
    timer.lap("acting")
    wait(2)
    timer.lap("environment")
    wait(4)
    timer.lap("acting")
    assert timer.seconds == {**dict.fromkeys(PHASES, 0.0), "acting": 5, "environment": 2}
    assert timer.last_lap == 107
    assert timer.total == 7


def test_a_lap_is_divided_in_proportion(wait):
    timer = Timer()
    wait(8)
    timer.split_lap({"environment": 3.0, "acting": 0.0, "learning": 1.0})
    wait(5)
    timer.split_lap({"environment": 0.0, "acting": 0.0})
    assert timer.seconds == {**dict.fromkeys(PHASES, 0.0), "environment": 6, "learning": 2 + 5}
    assert timer.total == 13


def test_cpu_seconds_count_from_the_start_of_the_timer_with_those_that_are_added():
    measured = iter([100.0, 103.0, 104.0])
    timer = Timer(lambda: next(measured))
    assert timer.cpu_seconds == 3
    timer.add_cpu_seconds(0.5)
    assert timer.cpu_seconds == 4.5


def test_a_tick_is_acting_and_then_the_environment(wait):
    class Slow(Skipping):
        def step(self, actions):
            wait(3)
            return super().step(actions)

    class Thoughtful(ParityAgent):
        def act(self, step, memory):
            wait(5)
            return super().act(step, memory)

    parts = make_components(Slow(config("", 2)), Thoughtful(rollout_length=4))
    collect_ticks(Actor(parts, seed=0), 2)
    assert parts.timer.seconds == {**dict.fromkeys(PHASES, 0.0), "acting": 10, "environment": 6}


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


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not count them")
def test_child_processes_and_their_children_count_while_they_run_and_when_they_have_ended():
    before = measure_cpu_seconds()
    command = [sys.executable, "-c", BUSY, BUSY]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert [process.stdout.readline().strip() for _ in range(2)] == ["used", "used"]
        running = measure_cpu_seconds() - before
        process.communicate()
    ended = measure_cpu_seconds() - before
    assert ended >= 0.6 - TICK
    if sys.platform.startswith("linux"):  # only Linux has /proc
        assert running >= 0.6 - TICK and ended >= running - TICK


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has /proc")
def test_a_process_that_ends_while_they_are_listed_does_not_count(monkeypatch):
    def stat(path, *, stat=os.stat, **options):
        if Path(path).name == "stat":
            raise ProcessLookupError
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", stat)
    with subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE):
        assert measure_cpu_seconds() > 0


def test_other_processes_do_not_count():
    command = f"import sys; sys.path.insert(0, {str(Path.cwd())!r})\n"
    command += "from algorithm.training.timer import measure_cpu_seconds\nprint(measure_cpu_seconds())"
    shown = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True).stdout
    assert 0 < float(shown) < time.process_time()  # its parent, this process, has imported more
