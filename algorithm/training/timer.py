"""The wall time of a run, by what it is used for."""

from __future__ import annotations

from time import perf_counter

STARTING = "starting"  # all before the first action: simulators, networks, a checkpoint
PHASES = (STARTING, "environment", "acting", "learning", "evaluation", "saving", "reporting")


class Timer:
    """Seconds of each part: the only clock of a run, for its metrics, its display and its result.

    Time is booked when a part ends, all of it since the last booking, so that no part has to be started and every
    second is counted. A booking takes a tenth of a microsecond, where a tick of two copies takes 70.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.last_lap = perf_counter()  # of the last booking: a time that costs nothing to read

    @property
    def total(self) -> float:
        """Return the seconds of all parts, until the last booking."""
        return sum(self.seconds.values())

    def lap(self, phase: str) -> None:
        """The time since the last booking went to `phase`."""
        now = perf_counter()
        self.seconds[phase] += now - self.last_lap
        self.last_lap = now
