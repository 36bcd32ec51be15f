"""The progress of a run, as plain numbers for a display."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from algorithm.training.history import Counters
from algorithm.training.timer import STARTING


@dataclass(frozen=True)
class Snapshot:
    """The counters of a run at one time, and the seconds of each phase until then."""

    counters: Counters
    seconds: Mapping[str, float]

    @classmethod
    def of(cls, counters: Counters, seconds: Mapping[str, float]) -> Snapshot:
        """Return a snapshot with copies of both."""
        return cls(replace(counters), dict(seconds))

    @property
    def running_seconds(self) -> float:
        """Return the seconds of all phases but the start."""
        return sum(self.seconds.values()) - self.seconds[STARTING]


@dataclass(frozen=True)
class Throughput:
    """Env steps and updates per second between two times, and the fraction of the time that each phase took."""

    env_steps: float
    updates: float
    shares: Mapping[str, float]

    @classmethod
    def between(cls, start: Snapshot, end: Snapshot) -> Throughput:
        """Return the throughput from one snapshot to a later one."""
        start_counters, counters = start.counters, end.counters
        running_seconds = max(end.running_seconds - start.running_seconds, 1e-9)
        spent = {phase: seconds - start.seconds[phase] for phase, seconds in end.seconds.items()}
        total = max(sum(spent.values()), 1e-9)
        return cls(
            (counters.env_steps - start_counters.env_steps) / running_seconds,
            (counters.updates - start_counters.updates) / running_seconds,
            {phase: seconds / total for phase, seconds in spent.items()},
        )


@dataclass(frozen=True, kw_only=True)
class RoleProgress:
    """The progress of one role or team: means over its last training episodes and its last updates.

    Attributes:
        mean: mean return; NaN before the first episode has ended.
        first: mean return of the first full window of episodes.
        best: best mean return of a full window.
        length: mean length of an episode; NaN before the first has ended.
        policy_metrics: {name: mean over the last updates}, of the policy.
        losses: {name: mean over the last updates}.
    """

    mean: float
    first: float | None
    best: float | None
    length: float
    policy_metrics: Mapping[str, float]
    losses: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of a run.

    Attributes:
        wrote_row: whether a row of metrics has just been written.
        has_ended: whether the run has ended; `throughput` then covers the whole process.
        counters: the counters.
        max_step: env steps at which the run ends; None without this limit.
        goal: mean return that is the goal; None without a goal.
        fraction_done: fraction of the run that is done, by max_step or max_iter; None without both.
        seconds_left: the longest time that the run will take; None if it is unknown, or the run has ended.
        throughput: env steps and updates per second.
        roles: {role or team: its progress}.
    """

    wrote_row: bool
    has_ended: bool = False
    counters: Counters
    max_step: int | None
    goal: float | None
    fraction_done: float | None
    seconds_left: float | None
    throughput: Throughput
    roles: Mapping[str, RoleProgress]
