"""A comparison of groups of runs: curves, scores, goals and probabilities of improvement; and its record in JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from algorithm.errors import UserError
from algorithm.runs.results import describe_state
from algorithm.tools.reports.compared_runs import ComparedRun, Curve, Group, choose_metric, group_runs, read_runs
from algorithm.tools.reports.run_data import Log
from algorithm.tools.reports.statistics import (
    Estimate,
    Improvement,
    Performance,
    Scores,
    compare_pairs,
    compute_mean,
    estimate,
    measure_groups,
)
from algorithm.training.metrics import format_number

CURVE_POINTS = 100
MAX_OVERSHOOT = 0.05  # of the env steps at the end of a run, by which the first value of another one may be later
FEW_RUNS = 5  # with fewer, an interval covers the mean in less than 90% of all cases


@dataclass(frozen=True, kw_only=True)
class GroupResult:
    """The result of a group in one environment.

    Attributes:
        group: the group.
        curves: the curve of each run.
        env_steps: [points] of the mean curve.
        mean_curve: [points] mean over runs; NaN in the gap of a run.
        performance: statistics of the returns at the same env steps as those of the other groups.
        steps_to_goal: env steps of each run to its goal; infinity for a run that did not reach it.
        cpu_seconds_to_goal: CPU seconds of each run to its goal, likewise; None if they are unknown.
    """

    group: Group
    curves: Sequence[Curve]
    env_steps: np.ndarray
    mean_curve: Estimate
    performance: Performance
    steps_to_goal: Sequence[float] | None
    cpu_seconds_to_goal: Sequence[float] | None

    @property
    def n_reached(self) -> int:
        """Return the number of runs that reached their goal."""
        return sum(run.has_reached_goal for run in self.group.runs)


@dataclass(frozen=True, kw_only=True)
class EnvironmentResult:
    """The results of all groups of an environment.

    Attributes:
        environment: name of its folder.
        goal: mean return that is the goal of all runs; None if they have none, or different ones.
        score_at: env steps at which returns are compared.
        groups: results by label.
        improvements: of each pair of groups.
    """

    environment: str
    goal: float | None
    score_at: int
    groups: Mapping[str, GroupResult]
    improvements: Sequence[Improvement]


@dataclass(frozen=True, kw_only=True)
class OverallResult:
    """The results over all environments of the groups that every environment has.

    Attributes:
        references: {environment: (return at the start of training, goal)}, which have the normalized scores 0 and 1.
        groups: performance of normalized scores by label; empty if scores cannot be normalized.
        improvements: of each pair of groups.
        obstacle: why scores cannot be normalized; None if they are.
    """

    references: Mapping[str, tuple[float, float]]
    groups: Mapping[str, Performance]
    improvements: Sequence[Improvement]
    obstacle: str | None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A comparison of runs.

    Attributes:
        metric: the column of metrics.csv whose values are compared.
        labels: labels of all groups, in the order in which they are shown.
        environments: the results of each environment.
        overall: the results over all environments; None if no two groups are in all of them, or for one environment.
        notes: lines on runs that are left out or end early, on damaged files, and on intervals.
        folder: the folder of the first run's folder, for files.
    """

    metric: str
    folder: Path
    labels: Sequence[str]
    environments: Sequence[EnvironmentResult]
    overall: OverallResult | None
    notes: Sequence[str]


def compare(patterns: Sequence[str], metric: str | None, log: Log) -> Comparison:
    """Return the comparison of runs.

    Args:
        patterns: run folders, folders that contain some, or patterns of either.
        metric: column of metrics.csv; None to choose one that all runs have.
        log: receives the notes.

    Raises:
        UserError: there is no run, or the runs have nothing in common.
    """
    notes: list[str] = []

    def note(line: str) -> None:
        notes.append(line)
        log(line)

    runs = read_runs(patterns, note)
    metric = choose_metric(runs, metric)
    for run in runs:
        if run.record["status"] != 0:
            end = run.read_curve(metric).env_steps[-1]
            note(f"{run} is not complete ({describe_state(run.record)}): its curve ends at {end:,.0f} env steps")
    groups = group_runs(runs, note)
    environments = []
    for name in dict.fromkeys(group.environment for group in groups):
        members = [group for group in groups if group.environment == name]
        _note_few_runs(name, members, note)
        environments.append(_compare_environment(name, members, metric, note))
    return Comparison(
        metric=metric,
        folder=(runs[0].folder if runs[0].folder.name else runs[0].folder.absolute()).parent,
        labels=list(dict.fromkeys(group.label for group in groups)),
        environments=environments,
        overall=_compare_overall(environments) if len(environments) > 1 else None,
        notes=notes,
    )


def _note_few_runs(environment: str, groups: Sequence[Group], note: Log) -> None:
    """Note which groups of an environment have no interval, or one that covers too little.

    An interval within the range of n runs misses the center of a symmetric distribution if all runs are on one side.
    """
    for group in groups:
        if len(group.runs) == 1:
            note(f"{environment}: {group.label} is a single run and has no interval")
    few = {group.label: len(group.runs) for group in groups if 1 < len(group.runs) < FEW_RUNS}
    if few:
        counts = ", ".join(f"{label} {count}" for label, count in few.items())
        note(
            f"{environment}: fewer than {FEW_RUNS} runs ({counts}): their intervals cover the mean in at most "
            f"{1 - 2 ** (1 - min(few.values())):.0%} of all cases, not in 95%"
        )


def _compare_environment(environment: str, groups: Sequence[Group], metric: str, note: Log) -> EnvironmentResult:
    """Return the results of the groups of an environment.

    Raises:
        UserError: a run ends before another one has its first value.
    """
    runs = [run for group in groups for run in group.runs]
    curves = {group.label: [run.read_curve(metric) for run in group.runs] for group in groups}
    ends = {label: _find_end(found) for label, found in curves.items()}
    score_at = min(ends.values())
    first = max(curve.env_steps[0] for found in curves.values() for curve in found)
    if first > score_at * (1 + MAX_OVERSHOOT):
        raise UserError(
            f"the runs of {environment} have no env steps in common: one ends at {score_at:,.0f} env steps, another "
            f"has its first value of {metric} at {first:,.0f}; leave out one of them, or give another --metric"
        )
    if first > score_at:
        note(
            f"{environment}: values are compared at {score_at:,.0f} env steps; the first value of {metric} of a run at "
            f"{first:,.0f} counts as its value there"
        )
    for run in runs:
        if run.record["status"] != 0 and run.read_curve(metric).env_steps[-1] == score_at:
            note(f"{environment}: values are compared at {score_at:,.0f} env steps, where {run} ends")
    goals = {run.goal for run in runs}
    scores = {label: [np.array([curve.read_at(score_at) for curve in found])] for label, found in curves.items()}
    performances = measure_groups(scores)
    return EnvironmentResult(
        environment=environment,
        goal=goals.pop() if len(goals) == 1 else None,
        score_at=int(score_at),
        groups={
            group.label: _summarize_group(group, curves[group.label], ends[group.label], performances[group.label])
            for group in groups
        },
        improvements=compare_pairs(scores),
    )


def _find_end(curves: Sequence[Curve]) -> float:
    """Return the env steps at which the shortest run ends; a run that reached its goal does not end before others."""
    open_ends = [curve.env_steps[-1] for curve in curves if not curve.is_held]
    return float(min(open_ends) if open_ends else max(curve.env_steps[-1] for curve in curves))


def _summarize_group(group: Group, curves: Sequence[Curve], end: float, performance: Performance) -> GroupResult:
    env_steps = np.linspace(min(end, max(curve.env_steps[0] for curve in curves)), end, CURVE_POINTS)
    values = np.stack([curve.interpolate(env_steps) for curve in curves], -1)
    return GroupResult(
        group=group,
        curves=curves,
        env_steps=env_steps,
        mean_curve=estimate(compute_mean, [values]),
        performance=performance,
        steps_to_goal=_list_until_goal(group.runs, "env_steps"),
        cpu_seconds_to_goal=_list_until_goal(group.runs, "cpu_seconds"),
    )


def _list_until_goal(runs: Sequence[ComparedRun], name: str) -> list[float] | None:
    """Return a number of each record; infinity for a run that did not reach its goal; None if one is not known."""
    numbers: list[Any] = [run.record.get(name) for run in runs]
    if None in numbers:
        return None
    return [number if run.has_reached_goal else inf for run, number in zip(runs, numbers, strict=True)]


def _compare_overall(environments: Sequence[EnvironmentResult]) -> OverallResult | None:
    """Return the results over all environments, of the groups that each of them has; None if there is none.

    The score 0 is the mean of the first values of all compared runs of an environment, and the score 1 its goal.
    """
    labels = [label for label in environments[0].groups if all(label in each.groups for each in environments)]
    if not labels:
        return None
    returns = {label: [each.groups[label].performance.scores[0] for each in environments] for label in labels}
    improvements = compare_pairs(returns)
    references, obstacle = {}, None
    for each in environments:
        start = float(np.mean([curve.values[0] for result in each.groups.values() for curve in result.curves]))
        if each.goal is None:
            obstacle = f"the runs of {each.environment} have no goal in common"
        elif start >= each.goal:
            obstacle = f"the runs of {each.environment} start above their goal, at {format_number(start)}"
        else:
            references[each.environment] = (start, each.goal)
    normalized: dict[str, Scores] = {}
    if obstacle is None:
        normalized = {
            label: [(task - low) / (goal - low) for task, (low, goal) in zip(tasks, references.values(), strict=True)]
            for label, tasks in returns.items()
        }
    return OverallResult(
        references=references,
        groups=measure_groups(normalized),
        improvements=improvements,
        obstacle=obstacle,
    )


def find_median(values: Sequence[float] | None) -> float | None:
    """Return the median to the goal; None if it is unknown, or if half of the runs or more did not reach the goal."""
    if values is None or not np.isfinite(middle := median(values)):
        return None
    return middle


def make_record(comparison: Comparison) -> dict[str, Any]:
    """Return the figures of a comparison in JSON, with null for the interval of a single run and an unknown number."""
    overall = comparison.overall
    record = {
        "metric": comparison.metric,
        "environments": [
            {
                "environment": result.environment,
                "goal": result.goal,
                "env_steps": result.score_at,
                "groups": [
                    {
                        "label": label,
                        "runs": list(map(str, group.group.runs)),
                        "mean": vars(group.performance.mean),
                        "iqm": vars(group.performance.iqm),
                        "scores": group.performance.scores[0],
                        "reached": group.n_reached,
                        "env_steps_to_goal": group.steps_to_goal,
                        "cpu_seconds_to_goal": group.cpu_seconds_to_goal,
                    }
                    for label, group in result.groups.items()
                ],
                "improvements": _describe_improvements(result.improvements),
            }
            for result in comparison.environments
        ],
        "overall": overall
        and {
            "references": {name: {"start": low, "goal": goal} for name, (low, goal) in overall.references.items()},
            "groups": [
                {"label": label, "mean": vars(found.mean), "iqm": vars(found.iqm)}
                for label, found in overall.groups.items()
            ],
            "improvements": _describe_improvements(overall.improvements),
            "obstacle": overall.obstacle,
        },
        "notes": comparison.notes,
    }
    return _to_json(record)


def _describe_improvements(improvements: Sequence[Improvement]) -> list[dict[str, Any]]:
    return [{"label": each.label, "other": each.other, **vars(each.probability)} for each in improvements]


def _to_json(value: Any) -> Any:
    """Return values of JSON for mappings, lists, arrays and numbers; null for a number that is not finite."""
    if isinstance(value, Mapping):
        return {name: _to_json(each) for name, each in value.items()}
    if isinstance(value, np.ndarray):
        return _to_json(value.tolist())
    if isinstance(value, list):
        return list(map(_to_json, value))
    return None if isinstance(value, float) and not isfinite(value) else value
