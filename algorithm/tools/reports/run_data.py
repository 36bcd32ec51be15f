"""Everything that a run folder contains about a run, read without torch, and its metrics as arrays."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from algorithm.config.registry import AGENTS, get_agent_section
from algorithm.config.yaml_layers import Tree, find_value, load_defaults, read_yaml
from algorithm.errors import UserError
from algorithm.parts.env_folder import CONFIG_FILE, POPULATION_FILE, VIDEO_FOLDER, read_origin
from algorithm.parts.provenance import read_sessions
from algorithm.parts.run_folder import RunFolder, find_changes
from algorithm.records_io import NumberTable, OpenRecord, read_json
from algorithm.runs.lineage import LineageRow, read_lineage
from algorithm.runs.results import Record, read_record
from algorithm.specs import Role
from algorithm.training.metrics import EVALUATION_COLUMN, STEPS_COLUMN, TABLE_FILE, read_table

FAULTS_FILE, NETWORKS_FILE = "faults.log", "networks.json"
RETURN_COLUMN = "rollout/return"
# Settings without an effect on the run: its name, and what only a search reads.
WITHOUT_EFFECT = re.compile(r"base_config\.name|tune\..*")
VIDEO_SUFFIXES = (".mp4", ".gif")
Log = Callable[[str], None]


class LayerRecord(OpenRecord):
    """A layer of a part in networks.json."""

    type: str
    shape: str
    parameters: int


class NodeRecord(OpenRecord):
    """A part of the networks in networks.json."""

    name: str
    type: str
    inputs: list[int]
    output: str | None
    parameters: int
    count: int
    layers: list[LayerRecord]


class NetworkRecord(OpenRecord):
    """The networks of a role in networks.json."""

    nodes: list[NodeRecord]
    parameters: int
    targets: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class RunMetrics:
    """The columns of metrics.csv.

    Attributes:
        columns: numbers of each column [n] by its name; NaN for an empty cell, and in a row that stands for damaged
            lines, except for its env steps.
        is_gap: [n] bool: rows that stand for damaged lines.
        roles: names of roles and teams, which end the names of columns.
    """

    columns: Mapping[str, np.ndarray]
    is_gap: np.ndarray
    roles: tuple[str, ...]

    def get_rows(self, column: str, *others: str) -> list[np.ndarray]:
        """Return env steps and columns [m] of the rows with a value in the first column, and NaN for each gap."""
        kept = np.isfinite(self.columns[column]) | self.is_gap
        return [self.columns[name][kept] for name in (STEPS_COLUMN, column, *others)]

    def get_known(self, column: str) -> np.ndarray:
        """Return the finite values of a column; none of a column that does not exist."""
        values = self.columns.get(column, np.empty(0))
        return values[np.isfinite(values)]

    def list_metrics(self) -> dict[str, dict[str, str]]:
        """Return the columns {metric: {role: column}}; the role is empty for a metric of the whole run."""
        found: dict[str, dict[str, str]] = {}
        for column in self.columns:
            role = next((role for role in self.roles if column.endswith(f"/{role}")), "")
            if column != STEPS_COLUMN:
                found.setdefault(column.removesuffix(f"/{role}" if role else ""), {})[role] = column
        return found


def make_metrics(table: NumberTable, roles: Mapping[str, Role]) -> RunMetrics:
    """Return the metrics of a run with these roles; there are no columns if no row can be read."""
    gaps = np.array(table.gaps, int)
    is_gap = np.insert(np.zeros(len(table.rows), bool), gaps, True)
    if not table.rows:
        return RunMetrics(columns={}, is_gap=is_gap, roles=())
    columns = {
        name: np.insert(np.array([float(row[name] or "nan") for row in table.rows]), gaps, np.nan)
        for name in table.columns
    }
    # A gap has the env steps of the row before it, or of the first row.
    columns[STEPS_COLUMN] = columns[STEPS_COLUMN][~is_gap][np.maximum(np.cumsum(~is_gap) - 1, 0)]
    names = {name for role, spec in roles.items() for name in (role, *spec.count_lanes_by_team(role))}
    starts = (f"{RETURN_COLUMN}/", f"{EVALUATION_COLUMN}/")
    names |= {column.removeprefix(start) for start in starts for column in columns if column.startswith(start)}
    return RunMetrics(columns=columns, is_gap=is_gap, roles=tuple(sorted(names, key=len, reverse=True)))


class RunData:
    """What a run folder contains. Each file is read once, when it is needed; it may be missing or damaged.

    Args:
        folder: the folder, as it was given.
        log: receives a line for each damaged file.
    """

    def __init__(self, folder: Path, log: Log):
        self.folder, self.log, self.name = folder, log, folder.name
        self.problems: Sequence[str] = []

    @cached_property
    def table(self) -> NumberTable:
        """The content of metrics.csv, which is slow to read."""
        return read_table(self.folder / TABLE_FILE)

    @cached_property
    def record(self) -> Record:
        """The content of result.json, from metrics.csv if that is missing."""
        return read_record(self.folder, self.log, self.table)

    @cached_property
    def roles(self) -> Mapping[str, Role]:
        """The roles that have appeared."""
        return self._read(lambda: RunFolder(self.folder).read_roles())

    @cached_property
    def metrics(self) -> RunMetrics:
        """The metrics in metrics.csv."""
        return make_metrics(self.table, self.roles)

    @cached_property
    def settings(self) -> Tree:
        """The settings of the run; empty if they cannot be read."""
        return self._read(lambda: read_yaml(self.folder / CONFIG_FILE))

    @cached_property
    def environment(self) -> str:
        """The name or path of the environment folder."""
        return read_origin(self.folder) or self.record.get("environment") or self.folder.parent.name

    @cached_property
    def unused_sections(self) -> Set[str]:
        """The sections of the algorithms that neither the run nor one of its roles has."""
        roles = self.get_setting("ma_config")
        trees = [self.settings, *(roles.values() if isinstance(roles, Mapping) else ())]
        used = {get_agent_section(str(find_value(tree, "base_config.algorithm"))) for tree in trees}
        return set(map(get_agent_section, AGENTS)) - used

    @cached_property
    def differences(self) -> Sequence[tuple[str, Any, Any]]:
        """Path, default and value of each setting that differs from its default and has an effect.

        The settings of other algorithms have none.
        """
        changes = find_changes(load_defaults(), self.settings) if self.settings else ()
        return [
            (path, *values)
            for path, *values in changes
            if not WITHOUT_EFFECT.fullmatch(path) and path.partition(".")[0] not in self.unused_sections
        ]

    @cached_property
    def changes(self) -> Sequence[tuple[int, str, Any, Any]]:
        """The settings that changed when the run was resumed: from which env step on, path, old and new value."""
        trees = RunFolder(self.folder).read_all_settings(self.log)
        return [
            (env_steps, *change)
            for (_, before), (env_steps, after) in zip(trees, trees[1:], strict=False)
            for change in find_changes(before, after)
        ]

    @cached_property
    def networks(self) -> Mapping[str, NetworkRecord]:
        """The content of networks.json, by role; empty for a run of a version that did not record them."""
        return self._read(lambda: read_json(self.folder / NETWORKS_FILE, dict[str, NetworkRecord]) or {})

    @cached_property
    def sessions(self) -> Sequence[Mapping[str, Any]]:
        """The processes that have trained it, oldest first."""
        return read_sessions(self.folder, self.log)

    @cached_property
    def faults(self) -> Sequence[str]:
        """The messages of faults.log, oldest first, after those of its older part."""
        parts = [self.folder / name for name in (f"{FAULTS_FILE}.1", FAULTS_FILE)]
        texts = [part.read_text(encoding="utf-8", errors="replace") for part in parts if part.exists()]
        return [line for text in texts for line in text.splitlines() if line.strip()]

    @cached_property
    def lineage(self) -> Sequence[LineageRow]:
        """The intervals of a member of a population, whose name is NAME-1, NAME-2, ...; empty for another run."""
        name, _, member = self.name.rpartition("-")
        population = self.folder.parent / name
        if not (name and member.isdecimal() and (population / POPULATION_FILE).is_file()):
            return []
        return [row for row in read_lineage(population, self.log) if row.member == int(member)]

    @cached_property
    def videos(self) -> Sequence[Path]:
        """The files in its folder of videos, relative to the run folder, those with the most env steps first."""

        def get_order(path: Path) -> tuple[int, str]:
            steps = path.stem.partition("-")[0]
            return (-int(steps) if steps.isdecimal() else 0, path.name)

        files = [path for path in (self.folder / VIDEO_FOLDER).glob("*") if path.suffix in VIDEO_SUFFIXES]
        return sorted((path.relative_to(self.folder) for path in files), key=get_order)

    @property
    def in_training(self) -> bool:
        """Whether another process trains the run now."""
        return RunFolder(self.folder).lock.is_held_elsewhere()

    @property
    def algorithm(self) -> str:
        """The name of its algorithm."""
        return str(self.get_setting("base_config.algorithm") or self.record.get("algorithm") or "unknown algorithm")

    @property
    def goal(self) -> float | None:
        """The mean return of the goal; None without one."""
        return self.get_setting("goal.return")

    def get_setting(self, path: str) -> Any:
        """Return the value of a setting; None if it is not known."""
        return find_value(self.settings, path)

    def _read(self, read: Callable[[], Any]) -> Any:
        """Return what `read` returns; an empty mapping if it raises UserError, whose message is logged."""
        try:
            return read()
        except UserError as error:
            self.log(" ".join(str(error).split()))
            return {}


def read_run(folder: Path) -> RunData:
    """Read a run folder. A missing or damaged file never raises an error: `problems` has a line for it."""
    problems: list[str] = []
    run = RunData(folder, problems.append)
    for name in ("record", "roles", "settings", "changes", "networks", "sessions", "lineage"):
        getattr(run, name)
    run.problems = [line.replace(f"{folder}{os.sep}", "") for line in problems]
    return run
