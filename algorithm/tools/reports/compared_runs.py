"""The runs of a comparison: which folders are runs, and what a comparison reads from each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from algorithm.config.registry import AGENTS, get_agent_section
from algorithm.config.yaml_layers import Tree, load_defaults, merge, read_yaml
from algorithm.errors import UserError
from algorithm.parts.env_folder import CONFIG_FILE, ORIGIN_FILE, read_origin
from algorithm.records_io import NumberTable
from algorithm.runs.results import Record, describe_state, format_algorithm, read_record
from algorithm.training.metrics import EVALUATION_COLUMN, STEPS_COLUMN, TABLE_FILE, read_table

Log = Callable[[str], None]
TRAINING_METRIC = "rollout/return"
# Settings and sections that do not change what is learned.
WITHOUT_EFFECT = (
    *(
        f"base_config.{name}"
        for name in ("name", "seed", "log_every", "save_every", "keep_checkpoints", "export", "tracker", "histograms")
    ),
    "report_config",
    "tracker_config",
    "tune",
)


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
        values = np.interp(
            env_steps, self.env_steps, self.values, left=np.nan, right=self.values[-1] if self.is_held else np.nan
        )
        following = np.searchsorted(self.env_steps, env_steps)  # the first point at or after each of them
        inside = following < len(self.gaps)
        following = np.where(inside, following, 0)
        values[inside & self.gaps[following] & (self.env_steps[following] > env_steps)] = np.nan
        return values

    def read_at(self, env_steps: float) -> float:
        """Return the value at these env steps, linear between points, in gaps too."""
        return float(np.interp(env_steps, self.env_steps, self.values))


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """A run of a comparison.

    Attributes:
        folder: its folder, as it was given.
        environment: name of its environment folder.
        record: its result.
        tree: its settings.
        table: its metrics.
    """

    folder: Path
    environment: str
    record: Record
    tree: Tree
    table: NumberTable

    def __str__(self) -> str:
        return self.folder.as_posix()

    @property
    def algorithm(self) -> str:
        """Return its algorithm, with its variant."""
        origin = {"algorithm": self.tree["base_config"]["algorithm"].upper(), **self.record}
        return format_algorithm(origin)

    @property
    def seed(self) -> Any:
        """Return its seed."""
        return self.tree["base_config"]["seed"]

    @property
    def goal(self) -> float | None:
        """Return the mean return that is its goal; None without a goal."""
        return (self.tree.get("goal") or {}).get("return")

    @property
    def is_evaluated(self) -> bool:
        """Return whether it is evaluated regularly."""
        return self.tree["base_config"].get("evaluate_every") is not None

    @property
    def has_reached_goal(self) -> bool:
        """Return whether it reached its goal."""
        return self.record["reached"] is True

    @property
    def state(self) -> str:
        """Return how it ended, in a few words."""
        return describe_state(self.record)

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """Return the settings that may change what is learned, by path, without sections of other algorithms.

        A setting that is newer than the run has its default.
        """
        tree = merge(load_defaults(), self.tree)
        others = {get_agent_section(name) for name in AGENTS} - {
            get_agent_section(self.tree["base_config"]["algorithm"])
        }
        sections = {name: values for name, values in tree.items() if name not in {*others, *WITHOUT_EFFECT}}
        return {path: value for path, value in _flatten(sections) if path not in WITHOUT_EFFECT}

    def find_columns(self, metric: str) -> list[str]:
        """Return the columns of a metric: itself, or one per role; empty if there is none."""
        return [name for name in self.table.columns if name == metric or name.startswith(f"{metric}/")]

    def read_curve(self, metric: str) -> Curve:
        """Return a metric by env steps, the mean over roles; points without a finite value are left out."""
        columns = self.find_columns(metric)
        points: dict[int, float] = {}
        gaps, is_after_gap = {}, False
        for number, row in enumerate(self.table.rows):
            is_after_gap |= number in self.table.gaps
            values = [float(row[name]) for name in columns if row[name]]
            if values and np.isfinite(values).all():
                env_steps = int(row[STEPS_COLUMN])
                points[env_steps], gaps[env_steps] = float(np.mean(values)), is_after_gap
                is_after_gap = False
        order = sorted(points)
        return Curve(
            env_steps=np.array(order, float),
            values=np.array([points[env_steps] for env_steps in order]),
            gaps=np.array([gaps[env_steps] for env_steps in order], bool),
            is_held=self.has_reached_goal,
        )


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
        UserError: there is no run.
    """
    folders = {path.resolve(): path for pattern in patterns for path in _find_runs(pattern, log)}
    runs = [run for run in (_read_run(folder, log) for folder in folders.values()) if run]
    if not runs:
        raise UserError(
            f"there is no run with metrics in {', '.join(patterns)}; name folders such as runs/gym/cartpole/*"
        )
    return runs


def _find_runs(pattern: str, log: Log) -> list[Path]:
    """Return the run folders of a path or pattern, sorted by name. Raises UserError for a path that does not exist."""
    path = Path(pattern)
    matches = [path] if path.exists() else Path(path.anchor).glob(pattern[len(path.anchor) :])
    places = _sort(place for place in matches if place.is_dir())  # and not the files of comparisons alongside runs
    if not places:
        raise UserError(f"{pattern}: there is no such folder; name run folders, such as runs/gym/cartpole/*")
    found = []
    for place in places:
        runs = [place] if _is_run(place) else _list_runs(place)
        if not runs:
            log(f"{place.as_posix()} has no run (a folder with {CONFIG_FILE} and {ORIGIN_FILE}): it is left out")
        found += runs
    return found


def _is_run(folder: Path) -> bool:
    return (folder / CONFIG_FILE).is_file() and (folder / ORIGIN_FILE).is_file()


def _list_runs(place: Path) -> list[Path]:
    """Return the runs below a folder."""
    folders = [path.parent for path in place.rglob(ORIGIN_FILE)]
    return _sort(folder for folder in folders if not folder.name.startswith(".") and _is_run(folder))


def _sort(folders: Iterable[Path]) -> list[Path]:
    """Return folders in the order of their names, in which 10 follows 9."""
    return sorted(folders, key=lambda folder: (folder.parent, _split_number(folder.name)))


def split_name(name: str) -> str:
    """Return NAME of the run NAME-3 of `--repeat`, and any other name as it is."""
    stem, _, number = name.rpartition("-")
    return stem if stem and number.isdecimal() else name


def _split_number(name: str) -> tuple[str, int]:
    stem = split_name(name)
    return stem, int(name[len(stem) + 1 :]) if stem != name else 0


def _read_run(folder: Path, log: Log) -> ComparedRun | None:
    """Return a run; None if it has no metrics."""
    try:
        table = read_table(folder / TABLE_FILE)
    except FileNotFoundError:
        log(f"{folder.as_posix()} has no {TABLE_FILE} yet: it is left out")
        return None
    record = read_record(folder, log, table)
    if not table.rows:
        log(f"{folder.as_posix()} has no row of metrics that can be read: it is left out")
        return None
    try:
        tree = read_yaml(folder / CONFIG_FILE)
    except UserError as error:
        log(f"{error}: it is left out")
        return None
    base = tree.get("base_config")
    if not (isinstance(base, Mapping) and isinstance(base.get("algorithm"), str) and "seed" in base):
        log(f"{(folder / CONFIG_FILE).as_posix()} is damaged (no base_config with algorithm and seed): it is left out")
        return None
    environment = read_origin(folder) or folder.parent.name
    return ComparedRun(folder=folder, environment=environment, record=record, tree=tree, table=table)


def choose_metric(runs: Sequence[ComparedRun], requested: str | None) -> str:
    """Return the metric to compare, which every run has.

    By default it is the return of evaluation episodes if all runs are evaluated regularly, and the return of training
    episodes otherwise. Raises UserError if a run does not have it.
    """
    metric = requested or (EVALUATION_COLUMN if all(run.is_evaluated for run in runs) else TRAINING_METRIC)
    for run in runs:
        if not len(run.read_curve(metric).values):
            known = ", ".join(name for name in run.table.columns if name != STEPS_COLUMN)
            raise UserError(f"{run} has no value of {metric}; compare another metric (--metric), it has {known}")
    return metric
