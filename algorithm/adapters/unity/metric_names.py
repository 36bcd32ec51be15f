"""Metrics by the names that ML-Agents gives to them, for people and programs that read those."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

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
SCENE, LESSON = "scene/", "scene/lesson/"  # what the names of statistics of a scene, and of its lessons, start with
LESSON_NAME = "Environment/Lesson Number/"


def rename_metrics(values: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Return metrics by their names in ML-Agents, for each role; statistics of the scene belong to all roles."""
    renamed: dict[str, dict[str, float]] = defaultdict(dict)
    for name, (expression, factor) in METRICS.items():
        for metric, value in values.items():
            if match := re.fullmatch(rf"{expression}(?:/(?P<role>.*))?", metric):
                renamed[match["role"] or DEFAULT_ROLE][name] = factor * value
    of_scene = {_rename_statistic(metric): value for metric, value in values.items() if metric.startswith(SCENE)}
    return {role: {**metrics, **of_scene} for role, metrics in renamed.items()}


def _rename_statistic(metric: str) -> str:
    if metric.startswith(LESSON):
        return LESSON_NAME + metric.removeprefix(LESSON)
    return metric.removeprefix(SCENE)
