"""The course of a number during a run of any length, in bounded memory."""

from __future__ import annotations

from math import isfinite
from statistics import fmean

MAX_POINTS = 256  # even


class Trend:
    """The means of successive values; whenever there are `MAX_POINTS`, two of them are merged into one.

    Each point is the mean of equally many values, except for the last one, which is not complete.
    """

    def __init__(self) -> None:
        self._points: list[float] = []
        self._incomplete: list[float] = []
        self._values_per_point = 1

    def add(self, value: float) -> None:
        """Add a value; one that is not finite is ignored."""
        if not isfinite(value):
            return
        self._incomplete.append(value)
        if len(self._incomplete) < self._values_per_point:
            return
        self._points.append(fmean(self._incomplete))
        self._incomplete.clear()
        if len(self._points) == MAX_POINTS:
            self._points = [fmean(self._points[start : start + 2]) for start in range(0, MAX_POINTS, 2)]
            self._values_per_point *= 2

    @property
    def points(self) -> list[float]:
        """Return the points, with the incomplete one."""
        return [*self._points, fmean(self._incomplete)] if self._incomplete else list(self._points)
