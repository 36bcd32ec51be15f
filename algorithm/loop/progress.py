"""How a run stands, as plain numbers for whoever shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from algorithm.loop.history import Counters


@dataclass(frozen=True)
class Moment:
    """What was counted at a moment, and where the time had gone (seconds by part)."""

    counters: Counters
    seconds: Mapping[str, float]

    @classmethod
    def of(cls, counters: Counters, seconds: Mapping[str, float]) -> Moment:
        """A copy of numbers that go on."""
        return cls(replace(counters), dict(seconds))


@dataclass(frozen=True)
class Pace:
    """Per second of wall time: env steps and updates; and the share of it that each part took."""

    env_steps: float
    updates: float
    shares: Mapping[str, float]

    @classmethod
    def between(cls, before: Moment, now: Moment) -> Pace:
        """The pace from one moment to a later one."""
        then, counters = before.counters, now.counters
        seconds = max(counters.seconds - then.seconds, 1e-9)
        return cls(
            (counters.env_steps - then.env_steps) / seconds,
            (counters.updates - then.updates) / seconds,
            {part: (spent - before.seconds[part]) / seconds for part, spent in now.seconds.items()},
        )


@dataclass(frozen=True)
class Standing:
    """How one role does: mean returns over the last training episodes, and measures of its last updates by name."""

    mean: float
    first: float | None  # of the first full window
    best: float | None
    measures: Mapping[str, float]


@dataclass(frozen=True)
class Progress:
    """How a run stands. `row` says that a row of metrics was written just now."""

    row: bool
    counters: Counters
    max_step: int | None
    goal: float | None
    done: float | None  # share of the way to max_step or max_iter, whichever is nearer; None without either
    seconds_left: float | None  # at most, at the pace of this session
    pace: Pace
    roles: Mapping[str, Standing]
