"""The time of a run: the seconds of each phase, and the CPU seconds of its processes."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from time import perf_counter

STARTING = "starting"  # everything before the first action: environments, networks, a checkpoint
PHASES = (STARTING, "environment", "acting", "learning", "evaluation", "saving", "reporting")


def measure_cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its descendants, since each of them was started.

    Descendants that run are measured on Linux, from /proc. Elsewhere they count when they have ended, and on Windows
    not at all.
    """
    ended = os.times()
    return time.process_time() + ended.children_user + ended.children_system + _measure_running()


def _measure_running() -> float:
    """Return the CPU seconds of the descendants of this process that run, and of their descendants that have ended."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except (AttributeError, ChildProcessError):  # no children; reading all processes takes milliseconds
        return 0.0
    children: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by parent: processes and their clock ticks
    for process_folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            # After its name, which may contain anything: state, parent, ..., and from 11 on the ticks in user and
            # system mode, of the process and of its children that have ended.
            fields = (process_folder / "stat").read_bytes().rpartition(b")")[2].split()
            children[int(fields[1])].append((int(process_folder.name), sum(map(int, fields[11:15]))))
    total, parents = 0, [os.getpid()]
    while parents:
        for process, ticks in children.get(parents.pop(), ()):
            total += ticks
            parents.append(process)
    return total / os.sysconf("SC_CLK_TCK") if total else 0.0


class Timer:
    """The seconds of each phase of a run: the only clock for metrics, display and result.

    A phase is timed when it ends, by the time since the last phase ended: no phase has to be started, and every second
    is counted. `lap` takes 0.1 microseconds; a tick of two CartPole environments takes 70.

    Args:
        measure_cpu: returns the CPU seconds of the processes of the run so far.
    """

    def __init__(self, measure_cpu: Callable[[], float] = measure_cpu_seconds) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._measure_cpu, self._cpu_start = measure_cpu, measure_cpu()
        self.last_lap = perf_counter()  # time of the last lap, for callers that need no exact time

    @property
    def total(self) -> float:
        """Return the seconds of all phases, until the last lap."""
        return sum(self.seconds.values())

    @property
    def cpu_seconds(self) -> float:
        """Measure and return the CPU seconds since the timer was made, and those that were added."""
        return self._measure_cpu() - self._cpu_start

    def add_cpu_seconds(self, seconds: float) -> None:
        """Add CPU seconds of a process that `measure_cpu` does not measure."""
        self._cpu_start -= seconds

    def lap(self, phase: str) -> None:
        """Add the time since the last lap to `phase`."""
        now = perf_counter()
        self.seconds[phase] += now - self.last_lap
        self.last_lap = now

    def split_lap(self, weights: Mapping[str, float]) -> None:
        """Divide the time since the last lap between phases, in proportion to `weights`; all 0 count as learning."""
        now, total = perf_counter(), sum(weights.values())
        for phase, weight in weights.items() if total > 0 else [("learning", 1.0)]:
            self.seconds[phase] += (now - self.last_lap) * weight / (total or 1.0)
        self.last_lap = now
