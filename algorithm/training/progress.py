"""How a run stands, as plain numbers for whoever shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from algorithm.training.history import Counters
from algorithm.training.timer import STARTING


@dataclass(frozen=True)
class Moment:
    """What was counted at a moment, and where the time had gone (seconds by part)."""

    counters: Counters
    seconds: Mapping[str, float]

    @classmethod
    def of(cls, counters: Counters, seconds: Mapping[str, float]) -> Moment:
        """A copy of numbers that go on."""
        return cls(replace(counters), dict(seconds))

    @property
    def running(self) -> float:
        """Return the seconds without those of the start."""
        return sum(self.seconds.values()) - self.seconds[STARTING]


@dataclass(frozen=True)
class Pace:
    """Env steps and updates for each second since the start, and the share of all time that each part took."""

    env_steps: float
    updates: float
    shares: Mapping[str, float]

    @classmethod
    def between(cls, before: Moment, now: Moment) -> Pace:
        """The pace from one moment to a later one."""
        then, counters = before.counters, now.counters
        seconds = max(now.running - before.running, 1e-9)
        spent = {part: seconds - before.seconds[part] for part, seconds in now.seconds.items()}
        total = max(sum(spent.values()), 1e-9)
        return cls(
            (counters.env_steps - then.env_steps) / seconds,
            (counters.updates - then.updates) / seconds,
            {part: one / total for part, one in spent.items()},
        )


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A summary of one role: means over its last training episodes, and over its last updates by name."""

    mean: float  # return; NaN before the first episode has ended
    first: float | None  # of the first full window
    best: float | None
    length: float  # of an episode; NaN before the first has ended
    measures: Mapping[str, float]  # of the policy
    losses: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The state of a run, for a display."""

    row: bool  # a row of metrics was written just now
    ended: bool = False  # nothing follows: `pace` is that of the whole session
    counters: Counters
    max_step: int | None
    goal: float | None
    done: float | None  # share of the way to max_step or max_iter, whichever is nearer; None without either
    seconds_left: float | None  # at most, at the pace of this session; None if it is not known, or the run has ended
    pace: Pace
    roles: Mapping[str, Standing]
