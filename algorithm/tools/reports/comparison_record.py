"""The record of a comparison, in values of JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from algorithm.tools.reports.comparison import Comparison, EnvironmentResult, GroupResult, OverallResult
from algorithm.tools.reports.performance import Improvement, Performance
from algorithm.tools.reports.statistics import Estimate

Record = dict[str, Any]


def make_record(comparison: Comparison) -> Record:
    """Return the figures of a comparison, with null for an interval of a single run and for an unknown number."""
    return {
        "metric": comparison.metric,
        "environments": [_describe_environment(result) for result in comparison.environments],
        "overall": _describe_overall(comparison.overall) if comparison.overall else None,
        "notes": list(comparison.notes),
    }


def _describe_environment(result: EnvironmentResult) -> Record:
    return {
        "environment": result.environment,
        "goal": result.goal,
        "env_steps": result.score_at,
        "groups": [_describe_group(group) for group in result.groups.values()],
        "improvements": _describe_improvements(result.improvements),
    }


def _describe_group(result: GroupResult) -> Record:
    return {
        "label": result.group.label,
        "runs": [str(run) for run in result.group.runs],
        **_describe_performance(result.performance),
        "scores": result.performance.scores[0].tolist(),
        "reached": result.n_reached,
        "env_steps_to_goal": _describe_numbers(result.steps_to_goal),
        "cpu_seconds_to_goal": None
        if result.cpu_seconds_to_goal is None
        else _describe_numbers(result.cpu_seconds_to_goal),
    }


def _describe_overall(result: OverallResult) -> Record:
    return {
        "references": {name: {"start": low, "goal": goal} for name, (low, goal) in result.references.items()},
        "groups": [{"label": label, **_describe_performance(found)} for label, found in result.groups.items()],
        "improvements": _describe_improvements(result.improvements),
        "obstacle": result.obstacle,
    }


def _describe_performance(performance: Performance) -> Mapping[str, Record]:
    return {"mean": _describe_estimate(performance.mean), "iqm": _describe_estimate(performance.iqm)}


def _describe_improvements(improvements: Sequence[Improvement]) -> list[Record]:
    return [{"label": each.label, "other": each.other, **_describe_estimate(each.probability)} for each in improvements]


def _describe_estimate(estimate: Estimate) -> Record:
    return {
        name: _finite_or_none(float(value))
        for name, value in (("value", estimate.value), ("low", estimate.low), ("high", estimate.high))
    }


def _describe_numbers(values: Sequence[float]) -> list[float | None]:
    return [_finite_or_none(value) for value in values]


def _finite_or_none(value: float) -> float | None:
    return value if isfinite(value) else None
