"""A comparison of runs: groups that differ in their seeds only, with their curves, scores, goals and probabilities."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from algorithm.config.yaml_layers import load_defaults, merge
from algorithm.errors import UserError, clean_text
from algorithm.parts.env_folder import CONFIG_FILE, ORIGIN_FILE
from algorithm.runs.results import describe_state, format_algorithm
from algorithm.tools.reports.run_data import RETURN_COLUMN, Log, RunData
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
from algorithm.training.metrics import EVALUATION_COLUMN, STEPS_COLUMN, TABLE_FILE, format_number

# Settings and sections that do not change what is learned.
BASE_SETTINGS = ("name", "seed", "log_every", "save_every", "keep_checkpoints", "export", "tracker", "histograms")
WITHOUT_EFFECT = {*(f"base_config.{name}" for name in BASE_SETTINGS), "report_config", "tracker_config", "tune"}
MISSING = "null"  # value of a setting that a run lacks
CURVE_POINTS = 100
MAX_OVERSHOOT = 0.05  # of the env steps at the end of a run, by which the first value of another one may be later
FEW_RUNS = 5  # with fewer, an interval covers the mean in less than 90% of all cases


class ComparedRun(RunData):
    """A run of a comparison, with the curve of a metric once `read_curve` has read it.

    Attributes:
        env_steps: [n], ascending.
        values: [n], the mean over roles.
        gaps: env steps of the points before and after damaged lines of the table.
    """

    env_steps: np.ndarray
    values: np.ndarray
    gaps: Sequence[tuple[float, float]]

    def __str__(self) -> str:
        return self.folder.as_posix()

    @property
    def seed(self) -> Any:
        """Its seed."""
        return self.get_setting("base_config.seed")

    @property
    def has_reached_goal(self) -> bool:
        """Whether it reached its goal, after which it keeps its last value."""
        return self.record["reached"] is True

    @cached_property
    def effective_settings(self) -> Mapping[str, str]:
        """The settings that may change what is learned, as texts by path, without sections of other algorithms.

        A setting that is newer than the run has its default. Words are as they are, other values are JSON.
        """
        ignored = {*self.unused_sections, *WITHOUT_EFFECT}
        sections = {
            name: values for name, values in merge(load_defaults(), self.settings).items() if name not in ignored
        }
        return {path: text for path, text in _flatten(sections) if path not in ignored}

    def read_curve(self, metric: str) -> None:
        """Read a metric by env steps, the mean over roles; points without a finite value are left out."""
        columns, is_gap = self.metrics.columns, self.metrics.is_gap
        roles = [values for name, values in columns.items() if name == metric or name.startswith(f"{metric}/")]
        rows = np.array(roles or np.full((1, len(is_gap)), np.nan))
        n_known = np.isfinite(rows).sum(0)
        means = np.nan_to_num(rows).sum(0) / np.maximum(n_known, 1)
        kept = np.flatnonzero(n_known)[::-1]  # of rows with the same env steps, the last one
        self.env_steps, first = np.unique(columns[STEPS_COLUMN][kept], return_index=True)
        self.values = means[kept[first]]
        before = np.flatnonzero(np.diff(np.cumsum(is_gap)[kept[first]]))
        self.gaps = list(zip(self.env_steps[before], self.env_steps[before + 1], strict=True))

    def interpolate(self, env_steps: np.ndarray) -> np.ndarray:
        """Return the values at these env steps [m], linear between points; NaN in gaps, and where there is no value."""
        end = self.values[-1] if self.has_reached_goal else np.nan
        values = np.interp(env_steps, self.env_steps, self.values, left=np.nan, right=end)
        for before, after in self.gaps:
            values[(env_steps > before) & (env_steps < after)] = np.nan
        return values


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
        goal: mean return that is the goal of all runs; None if they have none, or different ones.
        env_steps: env steps at which returns are compared.
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
        overall: the results over all environments; None if no two groups are in all of them, or for one environment.
        notes: lines on runs that are left out or end early, on damaged files, and on intervals.
    """

    metric: str
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
            end = run.env_steps[-1]
            note(f"{run} is not complete ({describe_state(run.record)}): its curve ends at {end:,.0f} env steps")
    environments = []
    for environment, groups in group_runs(runs, note).items():
        _note_few_runs(environment, groups, note)
        environments.append(_compare_environment(environment, groups, metric, note))
    return Comparison(
        metric=metric,
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
    score_at, first = min(ends.values()), max(run.env_steps[0] for run in all_runs)
    if first > score_at * (1 + MAX_OVERSHOOT):
        raise UserError(
            f"the runs of {environment} have no env steps in common: one ends at {score_at:,.0f} env steps, another "
            f"has its first value of {metric} at {first:,.0f}; leave out one of them, or give another --metric"
        )
    compared_at = f"{environment}: values are compared at {score_at:,.0f} env steps"
    if first > score_at:
        note(f"{compared_at}; the first value of {metric} of a run at {first:,.0f} counts as its value there")
    for run in all_runs:
        if run.record["status"] != 0 and run.env_steps[-1] == score_at:
            note(f"{compared_at}, where {run} ends")
    goals = {run.goal for run in all_runs}
    scores = {
        label: [np.array([np.interp(score_at, run.env_steps, run.values) for run in runs])]
        for label, runs in groups.items()
    }
    return EnvironmentResult(
        environment=environment,
        goal=goals.pop() if len(goals) == 1 else None,
        env_steps=int(score_at),
        groups=[
            _summarize_group(groups[each.label], scores[each.label], ends[each.label], each)
            for each in measure_groups(scores)
        ],
        improvements=compare_pairs(scores),
    )


def _find_end(runs: Sequence[ComparedRun]) -> float:
    """Return the env steps at which the shortest run ends; a run that reached its goal does not end before others."""
    ends = [run.env_steps[-1] for run in runs]
    open_ends = [end for run, end in zip(runs, ends, strict=True) if not run.has_reached_goal]
    return float(min(open_ends) if open_ends else max(ends))


def _summarize_group(runs: Sequence[ComparedRun], scores: Scores, end: float, performance: Performance) -> GroupResult:
    env_steps = np.linspace(min(end, max(run.env_steps[0] for run in runs)), end, CURVE_POINTS)
    values = np.stack([run.interpolate(env_steps) for run in runs], -1)
    return GroupResult(
        **vars(performance),
        runs=runs,
        scores=scores[0],
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
        start = float(np.mean([run.values[0] for group in each.groups for run in group.runs]))
        if each.goal is None:
            obstacle = f"the runs of {each.environment} have no goal in common"
        elif start >= each.goal:
            obstacle = f"the runs of {each.environment} start above their goal, at {format_number(start)}"
        else:
            references[each.environment] = {"start": start, "goal": each.goal}
    normalized: dict[str, Scores] = {}
    for label, tasks in returns.items() if obstacle is None else ():
        pairs = zip(tasks, references.values(), strict=True)
        normalized[label] = [(task - ends["start"]) / (ends["goal"] - ends["start"]) for task, ends in pairs]
    return OverallResult(
        references=references, groups=measure_groups(normalized), improvements=compare_pairs(returns), obstacle=obstacle
    )


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", clean_text(value if isinstance(value, str) else json.dumps(value, default=str))


def read_runs(patterns: Sequence[str], log: Log) -> list[ComparedRun]:
    """Return the runs in these folders, each once.

    Args:
        patterns: run folders, folders that contain some, or patterns of either.
        log: receives a line for each folder and each run that is left out, and for each damaged file.

    Raises:
        UserError: there is no run, or a path does not exist.
    """
    folders = {path.resolve(): path for pattern in patterns for path in _find_runs(pattern, log)}
    runs = [run for run in (ComparedRun(folder, log) for folder in folders.values()) if _is_readable(run)]
    if not runs:
        raise UserError(
            f"there is no run with metrics in {', '.join(patterns)}; name folders such as runs/gym/cartpole/*"
        )
    return runs


def _find_runs(pattern: str, log: Log) -> Iterator[Path]:
    """Yield the run folders of a path or pattern, sorted by name."""
    path = Path(pattern)
    matches = [path] if path.exists() else Path(path.anchor).glob(pattern[len(path.anchor) :])
    places = _sort(place for place in matches if place.is_dir())  # and not the files of comparisons alongside runs
    if not places:
        raise UserError(f"{pattern}: there is no such folder; name run folders, such as runs/gym/cartpole/*")
    for place in places:
        inside = [path.parent for path in place.rglob(ORIGIN_FILE) if (path.parent / CONFIG_FILE).is_file()]
        runs = [run for run in _sort(inside) if run == place or not run.name.startswith(".")]
        if not runs:
            log(f"{place.as_posix()} has no run (a folder with {CONFIG_FILE} and {ORIGIN_FILE}): it is left out")
        yield from runs


def _sort(folders: Iterable[Path]) -> list[Path]:
    """Return folders in the order of their names, in which 10 follows 9."""
    return sorted(folders, key=lambda folder: (folder.parent, *_split_name(folder.name)))


def _split_name(name: str) -> tuple[str, int]:
    """Return NAME and the number of the run NAME-3 of `--repeat`; any other name as it is, and 0."""
    stem, _, number = name.rpartition("-")
    return (stem, int(number)) if stem and number.isdecimal() else (name, 0)


def _is_readable(run: ComparedRun) -> bool:
    """Return whether a run can be compared; its log receives the reason if it cannot."""
    if not (run.folder / TABLE_FILE).exists():
        problem = f"{run} has no {TABLE_FILE} yet"
    elif not (run.record and run.table.rows):
        problem = f"{run} has no row of metrics that can be read"
    elif not isinstance(run.get_setting("base_config.algorithm"), str) or "seed" not in run.settings["base_config"]:
        problem = f"{run}/{CONFIG_FILE} is damaged (no base_config with algorithm and seed)"
    else:
        return True
    run.log(f"{problem}: it is left out")
    return False


def choose_metric(runs: Sequence[ComparedRun], requested: str | None) -> str:
    """Return the metric to compare, which every run has, and read the curve of each run.

    By default it is the return of evaluation episodes if all runs are evaluated regularly, and the return of training
    episodes otherwise. Raises UserError if a run does not have it.
    """
    are_evaluated = all(run.get_setting("base_config.evaluate_every") is not None for run in runs)
    metric = requested or (EVALUATION_COLUMN if are_evaluated else RETURN_COLUMN)
    for run in runs:
        run.read_curve(metric)
        if not len(run.values):
            known = ", ".join(name for name in run.table.columns if name != STEPS_COLUMN)
            raise UserError(f"{run} has no value of {metric}; compare another metric (--metric), it has {known}")
    return metric


def group_runs(runs: Iterable[ComparedRun], log: Log) -> dict[str, dict[str, list[ComparedRun]]]:
    """Return the runs by environment, and by a label of their algorithm, variant and settings that differ.

    Groups are in the order of their first runs. Runs with the same settings and seeds are independent only if something
    else has changed, such as the version of the code. A group that has a seed twice is therefore divided by the names
    of its runs, which are `NAME-1`, `NAME-2` for those of `--repeat`. `log` receives a line for each group that still
    has a seed twice.
    """
    groups: dict[str, dict[str, list[ComparedRun]]] = {}
    for (environment, algorithm), members in _collect(runs, _identify_algorithm):
        trees = [run.effective_settings for run in members]
        names = _name_differing(trees, dict.fromkeys(path for tree in trees for path in tree))
        for values, same in _collect(members, partial(_format_settings, names=names)):
            by_name = _collect(same, lambda run: _split_name(run.folder.name)[0])
            if not _find_repeated_seeds(same) or len(by_name) == 1:
                by_name = [("", same)]
            for name, part in by_name:
                label = clean_text(" ".join(filter(None, (algorithm, values, name))))
                groups.setdefault(environment, {})[label] = part
                if repeated := _find_repeated_seeds(part):
                    log(
                        f"{environment} {label} has several runs with seed {', '.join(map(str, repeated))}: they are "
                        "not independent, its interval is too narrow"
                    )
    return groups


def list_differing_settings(runs: Sequence[ComparedRun]) -> dict[str, list[str]]:
    """Return the settings that all runs have and whose values differ between them, with their values as text."""
    trees = [run.effective_settings for run in runs]
    shared = [path for path in trees[0] if all(path in tree for tree in trees)]
    return {path: [tree[path] for tree in trees] for path in _name_differing(trees, shared)}


def _identify_algorithm(run: ComparedRun) -> tuple[str, str]:
    """Return the environment of a run, and its algorithm with its variant."""
    return run.environment, format_algorithm({"algorithm": run.algorithm.upper(), **run.record})


def _collect(runs: Iterable[ComparedRun], key: Callable[[ComparedRun], Any]) -> list[tuple[Any, list[ComparedRun]]]:
    """Return the runs by key, in the order of the first run of each key."""
    found: dict[Any, list[ComparedRun]] = {}
    for run in runs:
        found.setdefault(key(run), []).append(run)
    return list(found.items())


def _name_differing(trees: Sequence[Mapping[str, str]], paths: Iterable[str]) -> dict[str, str]:
    """Return the settings that differ, by path: the last part of their path, if no other one ends with it."""
    names = {path: path.rpartition(".")[2] for path in paths if len({tree.get(path, MISSING) for tree in trees}) > 1}
    counts = Counter(names.values())
    return {path: name if counts[name] == 1 else path for path, name in names.items()}


def _format_settings(run: ComparedRun, names: Mapping[str, str]) -> str:
    return " ".join(f"{name}={run.effective_settings.get(path, MISSING)}" for path, name in names.items())


def _find_repeated_seeds(runs: Sequence[ComparedRun]) -> list[Any]:
    return sorted(seed for seed, count in Counter(run.seed for run in runs).items() if count > 1)
