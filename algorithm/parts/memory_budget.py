"""Checks of the memory of a run: its replays and rollouts fit, and replays are large enough to learn from."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from algorithm.agents.agent import Agent, DataSchedule
from algorithm.config.loader import Settings
from algorithm.config.sections import ReplayConfig
from algorithm.errors import UserError
from algorithm.parts.provenance import measure_total_memory
from algorithm.program import role_suffix
from algorithm.replay import SAMPLERS, ReplaySize, compute_replay_size
from algorithm.specs import Role
from algorithm.training.actor import SLOTS_PER_LANE

MEMINFO = Path("/proc/meminfo")
MB = 10**6


def compute_agent_replay_size(
    config: ReplayConfig, agent: Agent, role: Role, n_records: int, initial_lanes: int | None = None
) -> ReplaySize:
    """Return the size of an agent's replay.

    Auxiliaries store `n_records` values with each row; `initial_lanes` lanes (None: all) share the capacity.
    """
    return compute_replay_size(
        config.capacity,
        role,
        agent.schedule.rollout_length,
        agent.stored_state_size,
        agent.family.statistics_size,
        SAMPLERS[config.sampler].BYTES_PER_START,
        initial_lanes,
        n_records,
    )


def check_learning_starts(settings: Settings, agent: Agent, lanes: int, initial_lanes: int) -> None:
    """Raise UserError if the replay never holds `learning_starts` rows, or the run ends before it does.

    Of the `lanes` lanes of the role, the first `initial_lanes` share the capacity.
    """
    schedule, capacity, max_step = agent.schedule, settings.replay.capacity, settings.base.max_step
    chunk, start = schedule.rollout_length, schedule.learning_starts
    if schedule.replay_ratio == 0:
        return
    setting_name = f"{settings.agent_section}.learning_starts"
    rows = capacity // initial_lanes // chunk * chunk
    maximum = lanes * (rows - 1)  # one row of each lane stays free, for the observation after the newest row
    if start > maximum:
        needed = -(-(-(-start // lanes) + 1) // chunk) * chunk * initial_lanes
        raise UserError(
            f"{setting_name} is {start}, but replay_config.capacity {capacity} stores at most {maximum} rows "
            f"({lanes} lane(s) of {rows}, one of which stays free): set capacity to at least {needed}, "
            f"or learning_starts to at most {maximum}"
        )
    if max_step is not None and start > max_step and not schedule.on_policy_updates:
        raise UserError(
            f"{setting_name} is {start}, but base_config.max_step {max_step} ends the run before anything is learned: "
            f"set max_step above {start}, or learning_starts to at most {max_step}"
        )


class MemoryBudget:
    """The free memory of the machine, from which the replays of all roles are reserved before they are allocated."""

    def __init__(self, log: Callable[[str], None], disk: Path | None = None, workers: int = 1):
        """Measure the free memory, or the free space of `disk`, a folder; `workers` processes share it.

        `log` receives the sizes.
        """
        self.log, self.workers = log, workers
        self.free, self.kind = (shutil.disk_usage(disk).free, "disk") if disk else (measure_free_memory(), "memory")
        self._bytes: dict[str, int] = {}  # by role

    @property
    def reserved_bytes(self) -> int:
        """Return the bytes of all reserved replays."""
        return sum(self._bytes.values())

    def reserve(self, role: str, size: ReplaySize, copied_bytes: int = 0, prefix: str = "") -> None:
        """Reserve the replay of a role, in place of an earlier one of the role, and log its size after `prefix`.

        Of the earlier one, `copied_bytes` are needed until they are copied. Raises UserError if all replays together do
        not fit.
        """
        row = size.bytes / max(size.rows, 1)
        line = f"{size.rows:,} rows of {row:,.0f} bytes are {size.bytes / MB:,.1f} MB"
        if self.workers > 1:
            line += f" for each of {self.workers} workers"
        self.log(f"{prefix}replay{role_suffix(role)}: {line}")
        self._bytes[role] = size.bytes * self.workers
        if self.free is not None and self.reserved_bytes + copied_bytes > self.free:
            left = max(0, self.free - self.reserved_bytes - copied_bytes + self._bytes[role]) / self.workers
            raise UserError(
                f"{prefix}replay_config.capacity: {line}, but {left / MB:,.1f} MB of {self.kind} are free"
                f"{' for each' if self.workers > 1 else ''}; at most {int(left / row):,} rows fit"
            )


def check_batch(schedule: DataSchedule, replay: ReplaySize) -> None:
    """Raise UserError if a replayed batch, with rows of the same size as in the replay, does not fit into memory."""
    length = schedule.burn_in + schedule.sequence_length
    size = schedule.batch_size * length * replay.bytes / max(replay.rows, 1)
    if schedule.replay_ratio != 0:
        _check_free_memory(f"batch_size: {schedule.batch_size:,} sequences of {length:,} rows", size)


def check_rollout_memory(section: str, agent: Agent, role: Role) -> None:
    """Raise UserError if the rollouts of an agent without a replay do not fit into memory.

    `section` is the section of the agent's settings.
    """
    length = agent.schedule.rollout_length
    rows = SLOTS_PER_LANE * role.lanes * length
    size = compute_replay_size(rows, role, length, agent.state_size, agent.family.statistics_size)
    _check_free_memory(f"{section}.rollout_length: rollouts of {length:,} rows for {role.lanes} agents", size.bytes)


def _check_free_memory(what: str, size: float) -> None:
    """Raise UserError if a number of bytes, which `what` needs, is not free."""
    free = measure_free_memory()
    if free is not None and size > free:
        raise UserError(f"{what} are {size / MB:,.1f} MB, but {free / MB:,.1f} MB of memory are free")


def measure_free_memory() -> int | None:
    """Return the free memory in bytes; the total memory if only that is known; None if neither is known."""
    try:
        lines = MEMINFO.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return measure_total_memory()  # not Linux, or a very old kernel
