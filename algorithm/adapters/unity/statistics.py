"""Numbers that scenes tell of themselves (ML-Agents' StatsRecorder), brought together over copies and ticks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# How ML-Agents numbers the ways to bring values together.
AVERAGE, MOST_RECENT, SUM, HISTOGRAM = range(4)

SceneStatistics = Mapping[str, Sequence[tuple[float, int]]]  # by name: values, each with its way


class StatisticsCollector:
    """Collects what is told until it is taken; a histogram is its mean."""

    def __init__(self) -> None:
        self._values: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, statistics: SceneStatistics) -> None:
        """What one scene told at one tick."""
        for name, values in statistics.items():
            for value, aggregation in values:
                total = 0.0 if aggregation == MOST_RECENT else self._values.get(name, 0.0)
                self._values[name] = total + value
                self._counts[name] = self._counts.get(name, 0) + 1 if aggregation in (AVERAGE, HISTOGRAM) else 1

    def take(self) -> dict[str, float]:
        """Each number, of all that was told since the last call."""
        means = {name: value / self._counts[name] for name, value in self._values.items()}
        self._values.clear()
        self._counts.clear()
        return means
