"""A comparison of groups of runs: curves, scores, goals and probabilities of improvement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from algorithm.errors import UserError
from algorithm.runs.results import describe_state
from algorithm.tools.reports.compared_runs import ComparedRun, choose_metric, group_runs, read_runs
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
class GroupResult(Performance):
    """The result of a group in one environment.

    Attributes:
        runs: the runs.
        scores: return of each run at the same env steps as those of the other groups [runs].
        reached: the number of runs that reached their goal.
        env_steps_to_goal: env steps of each run to its goal; infinity for a run that did not reach it.
        cpu_seconds_to_goal: CPU seconds of each run to its goal, likewise; None if they are unknown.
        env_steps: [points] of the mean curve.
        mean_curve: [points] mean over runs; NaN in the gap of a run.
    """

    runs: Sequence[ComparedRun]
    scores: np.ndarray
    reached: int
    env_steps_to_goal: Sequence[float] | None
    cpu_seconds_to_goal: Sequence[float] | None
    env_steps: np.ndarray
    mean_curve: Estimate


@dataclass(frozen=True, kw_only=True)
class EnvironmentResult:
    """The results of all groups of an environment.

    Attributes:
        environment: name of its folder.
        goal: mean return that is the goal of all runs; None if they have none, or different ones.
        env_steps: env steps at which returns are compared.
        groups: result of each group.
        improvements: of each pair of groups.
    """

    environment: str
    goal: float | None
    env_steps: int
    groups: Sequence[GroupResult]
    improvements: Sequence[Improvement]


@dataclass(frozen=True, kw_only=True)
class OverallResult:
    """The results over all environments of the groups that every environment has.

    Attributes:
        references: return at the `start` of training and `goal` of each environment, whose normalized scores are 0
            and 1.
        groups: performance of normalized scores of each group; empty if scores cannot be normalized.
        improvements: of each pair of groups.
        obstacle: why scores cannot be normalized; None if they are.
    """

    references: Mapping[str, Mapping[str, float]]
    groups: Sequence[Performance]
    improvements: Sequence[Improvement]
    obstacle: str | None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A comparison of runs.

    Attributes:
        metric: the column of metrics.csv whose values are compared.
        environments: the results of each environment.
        overall: the results over all environments; None if no two groups are in all of them, or for one environment.
        notes: lines on runs that are left out or end early, on damaged files, and on intervals.
        folder: the folder of the first run's folder, for files.
    """

    metric: str
    environments: Sequence[EnvironmentResult]
    overall: OverallResult | None
    notes: Sequence[str]
    folder: Path


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
            end = run.curve.env_steps[-1]
            note(f"{run} is not complete ({describe_state(run.record)}): its curve ends at {end:,.0f} env steps")
    environments = []
    for environment, groups in group_runs(runs, note).items():
        _note_few_runs(environment, groups, note)
        environments.append(_compare_environment(environment, groups, metric, note))
    return Comparison(
        metric=metric,
        folder=(runs[0].folder if runs[0].folder.name else runs[0].folder.absolute()).parent,
        environments=environments,
        overall=_compare_overall(environments) if len(environments) > 1 else None,
        notes=notes,
    )


def _note_few_runs(environment: str, groups: Mapping[str, Sequence[ComparedRun]], note: Log) -> None:
    """Note which groups of an environment have no interval, or one that covers too little.

    An interval within the range of n runs misses the center of a symmetric distribution if all runs are on one side.
    """
    for label, runs in groups.items():
        if len(runs) == 1:
            note(f"{environment}: {label} is a single run and has no interval")
    few = {label: len(runs) for label, runs in groups.items() if 1 < len(runs) < FEW_RUNS}
    if few:
        counts = ", ".join(f"{label} {count}" for label, count in few.items())
        note(
            f"{environment}: fewer than {FEW_RUNS} runs ({counts}): their intervals cover the mean in at most "
            f"{1 - 2 ** (1 - min(few.values())):.0%} of all cases, not in 95%"
        )


def _compare_environment(
    environment: str, groups: Mapping[str, Sequence[ComparedRun]], metric: str, note: Log
) -> EnvironmentResult:
    """Return the results of the groups of an environment.

    Raises:
        UserError: a run ends before another one has its first value.
    """
    all_runs = [run for runs in groups.values() for run in runs]
    ends = {label: _find_end(runs) for label, runs in groups.items()}
    score_at, first = min(ends.values()), max(run.curve.env_steps[0] for run in all_runs)
    if first > score_at * (1 + MAX_OVERSHOOT):
        raise UserError(
            f"the runs of {environment} have no env steps in common: one ends at {score_at:,.0f} env steps, another "
            f"has its first value of {metric} at {first:,.0f}; leave out one of them, or give another --metric"
        )
    compared_at = f"{environment}: values are compared at {score_at:,.0f} env steps"
    if first > score_at:
        note(f"{compared_at}; the first value of {metric} of a run at {first:,.0f} counts as its value there")
    for run in all_runs:
        if run.record["status"] != 0 and run.curve.env_steps[-1] == score_at:
            note(f"{compared_at}, where {run} ends")
    goals = {run.goal for run in all_runs}
    scores = {label: [np.array([run.curve.read_at(score_at) for run in runs])] for label, runs in groups.items()}
    return EnvironmentResult(
        environment=environment,
        goal=goals.pop() if len(goals) == 1 else None,
        env_steps=int(score_at),
        groups=[
            _summarize_group(groups[each.label], scores[each.label][0], ends[each.label], each)
            for each in measure_groups(scores)
        ],
        improvements=compare_pairs(scores),
    )


def _find_end(runs: Sequence[ComparedRun]) -> float:
    """Return the env steps at which the shortest run ends; a run that reached its goal does not end before others."""
    ends = [run.curve.env_steps[-1] for run in runs]
    open_ends = [end for run, end in zip(runs, ends, strict=True) if not run.has_reached_goal]
    return float(min(open_ends) if open_ends else max(ends))


def _summarize_group(
    runs: Sequence[ComparedRun], scores: np.ndarray, end: float, performance: Performance
) -> GroupResult:
    env_steps = np.linspace(min(end, max(run.curve.env_steps[0] for run in runs)), end, CURVE_POINTS)
    values = np.stack([run.curve.interpolate(env_steps) for run in runs], -1)
    return GroupResult(
        **vars(performance),
        runs=runs,
        scores=scores,
        reached=sum(run.has_reached_goal for run in runs),
        env_steps_to_goal=_list_until_goal(runs, "env_steps"),
        cpu_seconds_to_goal=_list_until_goal(runs, "cpu_seconds"),
        env_steps=env_steps,
        mean_curve=estimate(compute_mean, [values]),
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
    scores = [{group.label: group.scores for group in each.groups} for each in environments]
    returns = {label: [each[label] for each in scores] for label in scores[0] if all(label in each for each in scores)}
    if not returns:
        return None
    references, obstacle = {}, None
    for each in environments:
        start = float(np.mean([run.curve.values[0] for group in each.groups for run in group.runs]))
        if each.goal is None:
            obstacle = f"the runs of {each.environment} have no goal in common"
        elif start >= each.goal:
            obstacle = f"the runs of {each.environment} start above their goal, at {format_number(start)}"
        else:
            references[each.environment] = {"start": start, "goal": each.goal}
    normalized: dict[str, Scores] = {}
    if obstacle is None:
        scales = [(ends["start"], ends["goal"] - ends["start"]) for ends in references.values()]
        normalized = {
            label: [(task - low) / extent for task, (low, extent) in zip(tasks, scales, strict=True)]
            for label, tasks in returns.items()
        }
    return OverallResult(
        references=references,
        groups=measure_groups(normalized),
        improvements=compare_pairs(returns),
        obstacle=obstacle,
    )
