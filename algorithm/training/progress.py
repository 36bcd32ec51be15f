"""How a run stands, as plain numbers for whoever shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from algorithm.training.history import Counters
from algorithm.training.timer import STARTING


@dataclass(frozen=True)
class Snapshot:
    """What was counted at a moment, and where the time had gone (seconds by part)."""

    counters: Counters
    seconds: Mapping[str, float]

    @classmethod
    def of(cls, counters: Counters, seconds: Mapping[str, float]) -> Snapshot:
        """A copy of numbers that go on."""
        return cls(replace(counters), dict(seconds))

    @property
    def running_seconds(self) -> float:
        """Return the seconds without those of the start."""
        return sum(self.seconds.values()) - self.seconds[STARTING]


@dataclass(frozen=True)
class Throughput:
    """Env steps and updates for each second since the start, and the share of all time that each part took."""

    env_steps: float
    updates: float
    shares: Mapping[str, float]

    @classmethod
    def between(cls, start: Snapshot, end: Snapshot) -> Throughput:
        """The pace from one moment to a later one."""
        start_counters, counters = start.counters, end.counters
        seconds = max(end.running_seconds - start.running_seconds, 1e-9)
        spent = {part: seconds - start.seconds[part] for part, seconds in end.seconds.items()}
        total = max(sum(spent.values()), 1e-9)
        return cls(
            (counters.env_steps - start_counters.env_steps) / seconds,
            (counters.updates - start_counters.updates) / seconds,
            {part: seconds_spent / total for part, seconds_spent in spent.items()},
        )


@dataclass(frozen=True, kw_only=True)
class RoleProgress:
    """A summary of one role: means over its last training episodes, and over its last updates by name."""

    mean: float  # return; NaN before the first episode has ended
    first: float | None  # of the first full window
    best: float | None
    length: float  # of an episode; NaN before the first has ended
    policy_metrics: Mapping[str, float]  # of the policy
    losses: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The state of a run, for a display."""

    wrote_row: bool  # a row of metrics was written just now
    has_ended: bool = False  # nothing follows: `pace` is that of the whole session
    counters: Counters
    max_step: int | None
    goal: float | None
    fraction_done: float | None  # share of the way to max_step or max_iter, whichever is nearer; None without either
    seconds_left: float | None  # at most, at the pace of this session; None if it is not known, or the run has ended
    throughput: Throughput
    roles: Mapping[str, RoleProgress]
