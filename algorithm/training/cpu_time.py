"""The CPU seconds of a process and of the processes that it has started."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PROCESSES = Path("/proc")


def measure_cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its descendants, since each of them was started.

    Descendants that run are measured on Linux, from /proc. Elsewhere they count when they have ended, and on Windows
    not at all.
    """
    ended = os.times()
    return time.process_time() + ended.children_user + ended.children_system + _measure_running()


def _measure_running() -> float:
    """Return the CPU seconds of the descendants of this process that run, and of their descendants that have ended."""
    if not _has_children():  # reading all processes takes milliseconds
        return 0.0
    children: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by parent: processes and their clock ticks
    for process, parent, ticks in _read_processes():
        children[parent].append((process, ticks))
    total, parents = 0, [os.getpid()]
    while parents:
        for process, ticks in children.get(parents.pop(), ()):
            total += ticks
            parents.append(process)
    return total / os.sysconf("SC_CLK_TCK") if total else 0.0


def _has_children() -> bool:
    """Return whether this process has child processes whose end it has not waited for."""
    if not hasattr(os, "waitid"):
        return False
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _read_processes() -> Iterator[tuple[int, int, int]]:
    """Yield each process of the system with its parent and its clock ticks; nothing without /proc."""
    if not (PROCESSES / "self" / "stat").exists():  # on macOS
        return
    for folder in PROCESSES.glob("[0-9]*"):
        try:
            content = (folder / "stat").read_bytes()
        except OSError:  # it has ended
            continue
        # After its name, which may contain anything: state, parent, ..., and from 11 on the ticks in user and system
        # mode, of the process and of its children that have ended.
        fields = content.rpartition(b")")[2].split()
        yield int(folder.name), int(fields[1]), sum(map(int, fields[11:15]))
