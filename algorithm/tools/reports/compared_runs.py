"""The runs of a comparison: which folders are runs, what is compared, and groups that differ in their seeds only."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from algorithm.config.registry import AGENTS, get_agent_section
from algorithm.config.yaml_layers import load_defaults, merge
from algorithm.errors import UserError, clean_text
from algorithm.parts.env_folder import CONFIG_FILE, ORIGIN_FILE
from algorithm.runs.results import format_algorithm
from algorithm.tools.reports.run_data import RETURN_COLUMN, Log, RunData
from algorithm.training.metrics import EVALUATION_COLUMN, STEPS_COLUMN, TABLE_FILE

# Settings and sections that do not change what is learned.
BASE_SETTINGS = ("name", "seed", "log_every", "save_every", "keep_checkpoints", "export", "tracker", "histograms")
WITHOUT_EFFECT = {*(f"base_config.{name}" for name in BASE_SETTINGS), "report_config", "tracker_config", "tune"}
MAX_VALUE_LENGTH = 40  # characters of the value of a setting in a label


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A metric of a run, by env steps.

    Attributes:
        env_steps: [n], ascending.
        values: [n], the mean over roles.
        gaps: [n] bool, whether damaged lines of the table are before a point.
        is_held: whether the run reached its goal, after which it keeps its last value.
    """

    env_steps: np.ndarray
    values: np.ndarray
    gaps: np.ndarray
    is_held: bool

    def interpolate(self, env_steps: np.ndarray) -> np.ndarray:
        """Return the values at these env steps [m], linear between points; NaN in gaps, and where there is no value."""
        end = self.values[-1] if self.is_held else np.nan
        values = np.interp(env_steps, self.env_steps, self.values, left=np.nan, right=end)
        following = np.searchsorted(self.env_steps, env_steps)  # the first point at or after each of them
        inside = following < len(self.gaps)
        following = np.where(inside, following, 0)
        values[inside & self.gaps[following] & (self.env_steps[following] > env_steps)] = np.nan
        return values

    def read_at(self, env_steps: float) -> float:
        """Return the value at these env steps, linear between points, in gaps too."""
        return float(np.interp(env_steps, self.env_steps, self.values))


class ComparedRun(RunData):
    """A run of a comparison; `curve` is the metric that is compared, once it is chosen."""

    curve: Curve

    def __str__(self) -> str:
        return self.folder.as_posix()

    @property
    def seed(self) -> Any:
        """Its seed."""
        return self.get_setting("base_config.seed")

    @property
    def has_reached_goal(self) -> bool:
        """Whether it reached its goal."""
        return self.record["reached"] is True

    @cached_property
    def effective_settings(self) -> Mapping[str, Any]:
        """The settings that may change what is learned, by path, without sections of other algorithms.

        A setting that is newer than the run has its default.
        """
        others = {get_agent_section(name) for name in AGENTS} - {get_agent_section(self.algorithm)}
        tree = merge(load_defaults(), self.settings)
        sections = {name: values for name, values in tree.items() if name not in {*others, *WITHOUT_EFFECT}}
        return {path: value for path, value in _flatten(sections) if path not in WITHOUT_EFFECT}

    def read_curve(self, metric: str) -> Curve:
        """Return a metric by env steps, the mean over roles; points without a finite value are left out."""
        columns, is_gap = self.metrics.columns, self.metrics.is_gap
        roles = [values for name, values in columns.items() if name == metric or name.startswith(f"{metric}/")]
        rows = np.array(roles or np.full((1, len(is_gap)), np.nan))
        n_known = np.isfinite(rows).sum(0)
        means = np.nan_to_num(rows).sum(0) / np.maximum(n_known, 1)
        kept = np.flatnonzero(n_known)[::-1]  # of rows with the same env steps, the last one
        env_steps, first = np.unique(columns[STEPS_COLUMN][kept], return_index=True)
        order = kept[first]
        gaps = np.diff(np.cumsum(is_gap)[order], prepend=0) > 0
        return Curve(env_steps=env_steps, values=means[order], gaps=gaps, is_held=self.has_reached_goal)


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


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
        inside = _sort(path.parent for path in place.rglob(ORIGIN_FILE) if not path.parent.name.startswith("."))
        runs = [place] if _is_run(place) else list(filter(_is_run, inside))
        if not runs:
            log(f"{place.as_posix()} has no run (a folder with {CONFIG_FILE} and {ORIGIN_FILE}): it is left out")
        yield from runs


def _is_run(folder: Path) -> bool:
    return (folder / CONFIG_FILE).is_file() and (folder / ORIGIN_FILE).is_file()


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
        run.curve = run.read_curve(metric)
        if not len(run.curve.values):
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
        by_settings = [same for _, same in _collect(members, lambda run: _make_key(run.effective_settings))]
        firsts = [same[0] for same in by_settings]
        paths = _find_differing(firsts, dict.fromkeys(path for run in firsts for path in run.effective_settings))
        for same in by_settings:
            label = " ".join([algorithm, *(_format_setting(path, same[0], paths) for path in paths)])
            by_name = _collect(same, lambda run: _split_name(run.folder.name)[0])
            if not _find_repeated_seeds(same) or len(by_name) == 1:
                by_name = [("", same)]
            for name, part in by_name:
                groups.setdefault(environment, {})[clean_text(f"{label} {name}".rstrip())] = part
    for environment, labeled in groups.items():
        for label, part in labeled.items():
            if repeated := _find_repeated_seeds(part):
                log(
                    f"{environment} {label} has several runs with seed {', '.join(map(str, repeated))}: they are not "
                    "independent, its interval is too narrow"
                )
    return groups


def list_differing_settings(runs: Sequence[ComparedRun]) -> dict[str, list[str]]:
    """Return the settings that all runs have and whose values differ between them, with their values as text."""
    trees = [run.effective_settings for run in runs]
    shared = [path for path in trees[0] if all(path in tree for tree in trees)]
    return {path: [_format_value(tree[path]) for tree in trees] for path in _find_differing(runs, shared)}


def _identify_algorithm(run: ComparedRun) -> tuple[str, str]:
    """Return the environment of a run, and its algorithm with its variant."""
    return run.environment, format_algorithm({"algorithm": run.algorithm.upper(), **run.record})


def _collect(runs: Iterable[ComparedRun], key: Callable[[ComparedRun], Any]) -> list[tuple[Any, list[ComparedRun]]]:
    """Return the runs by key, in the order of the first run of each key."""
    found: dict[Any, list[ComparedRun]] = {}
    for run in runs:
        found.setdefault(key(run), []).append(run)
    return list(found.items())


def _make_key(settings: Any) -> str:
    return json.dumps(settings, sort_keys=True, default=str)


def _find_differing(runs: Sequence[ComparedRun], paths: Iterable[str]) -> list[str]:
    """Return which of the settings have different values in these runs; a run that lacks one has null."""
    return [path for path in paths if len({_make_key(run.effective_settings.get(path)) for run in runs}) > 1]


def _format_setting(path: str, run: ComparedRun, paths: Sequence[str]) -> str:
    """Return name=value of a setting; the name is the last part of its path, if no other path ends with it."""
    name = path.rpartition(".")[2]
    is_unique = sum(other.rpartition(".")[2] == name for other in paths) == 1
    return f"{name if is_unique else path}={_format_value(run.effective_settings.get(path))}"


def _format_value(value: Any) -> str:
    """Return the value of a setting as a short text."""
    text = clean_text(value if isinstance(value, str) else json.dumps(value))
    return text if len(text) <= MAX_VALUE_LENGTH else f"{text[: MAX_VALUE_LENGTH - 3]}..."


def _find_repeated_seeds(runs: Sequence[ComparedRun]) -> list[Any]:
    return sorted(seed for seed, count in Counter(run.seed for run in runs).items() if count > 1)
