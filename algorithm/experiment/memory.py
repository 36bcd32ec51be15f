"""Whether what a run will keep fits into this machine's memory, or onto its disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from algorithm.agents.agent import Agent, Schedule
from algorithm.experiment.errors import UserError
from algorithm.experiment.samplers import make_sampler
from algorithm.experiment.sections import ReplayConfig
from algorithm.replay import Size, size_of
from algorithm.specs import Role, of_role

MEMINFO = Path("/proc/meminfo")
MB = 10**6


def replay_size(config: ReplayConfig, agent: Agent, role: Role) -> Size:
    """What the replay of an agent will take."""
    per_start = make_sampler(config).func.BYTES
    schedule, statistics = agent.schedule, agent.family.statistics
    return size_of(config.capacity, role, schedule.collect_steps, agent.kept, statistics, per_start)


class Budget:
    """Tells the size of each replay before it is allocated, and refuses what does not fit beside those before it."""

    def __init__(self, say: Callable[[str], None], disk: Path | None = None):
        """Of the memory, or of the disk that holds the folder `disk`."""
        self.say = say
        self.free, self.kind = (shutil.disk_usage(disk).free, "disk") if disk else (available(), "memory")
        self.planned = 0

    def plan(self, role: str, size: Size) -> None:
        """Raises UserError where what was free at the start is too small."""
        row = size.bytes / max(size.rows, 1)
        line = f"{size.rows:,} rows of {row:,.0f} bytes are {size.bytes / MB:,.1f} MB"
        self.say(f"replay{of_role(role)}: {line}")
        self.planned += size.bytes
        if self.free is not None and self.planned > self.free:
            left = max(0, self.free - self.planned + size.bytes)
            raise UserError(
                f"replay_config.capacity: {line}, but {left / MB:,.1f} MB of {self.kind} are free; "
                f"at most {int(left / row):,} rows fit"
            )


def check_batch(schedule: Schedule, replay: Size) -> None:
    """Raise UserError if the rows of a replayed batch, as large as those of the replay, are more than fits."""
    length = schedule.burn_in + schedule.trace_length
    size = schedule.batch_size * length * replay.bytes / max(replay.rows, 1)
    free = available()
    if schedule.replay_ratio and free is not None and size > free:
        raise UserError(
            f"batch_size: {schedule.batch_size:,} windows of {length:,} rows are {size / MB:,.1f} MB, "
            f"but {free / MB:,.1f} MB of memory are free"
        )


def available() -> int | None:
    """Bytes that can still be used; where only the size of the memory is known, that; None where nothing is."""
    try:
        lines = MEMINFO.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        pass  # not Linux, or a very old one
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
