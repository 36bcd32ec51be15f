"""Statistics of scenes, and metrics by the names that ML-Agents gives to them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

from algorithm.program import DEFAULT_ROLE

# Name in ML-Agents: a regular expression of the metric, and the factor between the two.
METRICS = {
    "Environment/Cumulative Reward": (r"rollout/return", 1.0),
    "Environment/Episode Length": (r"rollout/length", 1.0),
    "Policy/Extrinsic Reward": (r"rollout/return", 1.0),
    "Policy/Extrinsic Value Estimate": (r"train/value", 1.0),
    "Policy/Entropy": (r"train/entropy", 1.0),
    "Policy/Learning Rate": (r"train/(?:acer|actor_critic|policy|reactor)_learning_rate", 1.0),
    "Policy/Curiosity Reward": (r"train/curiosity_reward", 1.0),
    "Losses/Policy Loss": (r"train/policy_objective", -1.0),
    "Losses/Value Loss": (r"train/critic_loss", 2.0),  # the squared error, not half of it
}
SCENE, LESSON = "scene/", "lesson/"  # what the names of statistics start with, and then those of lessons
LESSON_NAME = "Environment/Lesson Number/"
# ML-Agents' numbers of the ways in which the values of a statistic are aggregated.
AVERAGE, MOST_RECENT, SUM, HISTOGRAM = range(4)

SceneStatistics = Mapping[str, Sequence[tuple[float, int]]]  # {name: values, each with its aggregation}


class StatisticsCollector:
    """A collector of the statistics that scenes record (ML-Agents' StatsRecorder), over all environments and ticks."""

    def __init__(self) -> None:
        self._values: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, statistics: SceneStatistics) -> None:
        """Add the statistics of one scene at one tick."""
        for name, values in statistics.items():
            for value, aggregation in values:
                total = 0.0 if aggregation == MOST_RECENT else self._values.get(name, 0.0)
                self._values[name] = total + value
                self._counts[name] = self._counts.get(name, 0) + 1 if aggregation in (AVERAGE, HISTOGRAM) else 1

    def take(self) -> dict[str, float]:
        """Return one number for each statistic that was added since the last call; a histogram becomes its mean."""
        means = {name: value / self._counts[name] for name, value in self._values.items()}
        self._values.clear()
        self._counts.clear()
        return means


def rename_metrics(values: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Return metrics by their names in ML-Agents, for each role; statistics of the scene belong to all roles."""
    renamed: dict[str, dict[str, float]] = defaultdict(dict)
    for name, (expression, factor) in METRICS.items():
        for metric, value in values.items():
            if match := re.fullmatch(rf"{expression}(?:/(?P<role>.*))?", metric):
                renamed[match["role"] or DEFAULT_ROLE][name] = factor * value
    of_scene = {
        re.sub(f"^{LESSON}", LESSON_NAME, metric.removeprefix(SCENE)): value
        for metric, value in values.items()
        if metric.startswith(SCENE)
    }
    return {role: {**metrics, **of_scene} for role, metrics in renamed.items()}
