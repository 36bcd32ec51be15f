"""Everything that a run folder contains about a run, read once, without torch."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from algorithm.config.registry import AGENTS, get_agent_section
from algorithm.config.yaml_layers import Tree, load_defaults, read_yaml
from algorithm.errors import UserError
from algorithm.parts.env_folder import CONFIG_FILE, POPULATION_FILE, VIDEO_FOLDER, read_origin
from algorithm.parts.lock import FolderLock
from algorithm.parts.run_records import ConfigHistory, find_changes, read_roles
from algorithm.population.lineage import LineageRow, PopulationRecord
from algorithm.records_io import OpenRecord, RecordError, read_json
from algorithm.runs.results import Record, read_record
from algorithm.runs.sessions import read_sessions
from algorithm.specs import Role
from algorithm.tools.reports.run_metrics import RunMetrics, make_metrics
from algorithm.training.metrics import TABLE_FILE, read_table_if_present

FAULTS_FILE, ROLES_FILE, CONFIGS_FOLDER, NETWORKS_FILE = "faults.log", "roles.json", "configs", "networks.json"
# Settings without an effect on the run: its name, and what only the command tune reads.
WITHOUT_EFFECT = re.compile(r"base_config\.name|tune\..*")
VIDEO_SUFFIXES = (".mp4", ".gif")
MEMBER_NAME = re.compile(r"(?P<population>.+)-(?P<member>\d+)")


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A setting that differs between two trees; `env_steps` are those from which on it has the new value."""

    path: str
    before: Any
    after: Any
    env_steps: int = 0


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """The intervals of a run that is a member of a population, from its name and the member's number."""

    population: str
    member: int
    rows: Sequence[LineageRow]


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
class RunData:
    """What a run folder contains.

    Attributes:
        folder: the folder, as it was given.
        environment: name or path of the environment folder.
        record: content of result.json, from metrics.csv if that is missing.
        in_training: whether another process trains the run now.
        settings: the settings of the run; empty if they cannot be read.
        differences: its settings that differ from the defaults.
        changes: settings that changed when the run was resumed.
        metrics: the table metrics.csv.
        roles: the roles that have appeared.
        networks: content of networks.json, by role.
        sessions: the processes that have trained it.
        faults: lines of faults.log.
        lineage: its intervals, if it is a member of a population.
        videos: files in its folder of videos, relative to the run folder, those with the most env steps first.
        problems: a line for each file that is damaged, with its path relative to the run folder.
    """

    folder: Path
    environment: str
    record: Record
    in_training: bool
    settings: Tree
    differences: Sequence[Difference]
    changes: Sequence[Difference]
    metrics: RunMetrics
    roles: Mapping[str, Role]
    networks: Mapping[str, Any]
    sessions: Sequence[Mapping[str, Any]]
    faults: Sequence[str]
    lineage: Lineage | None
    videos: Sequence[Path]
    problems: Sequence[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name of the run."""
        return self.folder.name

    @property
    def algorithm(self) -> str:
        """The name of its algorithm."""
        return str(self.get_setting("base_config.algorithm") or self.record.get("algorithm") or "unknown algorithm")

    @property
    def variant(self) -> str:
        """The variant of the folder's config.yaml; empty for the default one, and if it is not known."""
        variant = self.record.get("variant") or "default"
        return "" if variant == "default" else variant

    @property
    def goal(self) -> float | None:
        """The mean return of the goal; None without one."""
        return (self.settings.get("goal") or {}).get("return")

    def get_setting(self, path: str) -> Any:
        """Return the value of a setting; None if it is not known."""
        value: Any = self.settings
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        return value


def read_run(folder: Path) -> RunData:
    """Read a run folder. A missing or damaged file never raises an error: `problems` has a line for it."""
    problems: list[str] = []
    table = read_table_if_present(folder / TABLE_FILE)  # slow, therefore once
    record = read_record(folder, problems.append, table)
    roles = _read(lambda: read_roles(folder / ROLES_FILE), {}, problems)
    settings = _read(lambda: read_yaml(folder / CONFIG_FILE), {}, problems)
    return RunData(
        folder=folder,
        environment=read_origin(folder) or record.get("environment") or folder.parent.name,
        record=record,
        in_training=FolderLock(folder, str(folder)).is_held_elsewhere(),
        settings=settings,
        differences=_find_differences(settings),
        changes=_find_resume_changes(ConfigHistory(folder / CONFIGS_FOLDER), problems.append),
        metrics=make_metrics(table, roles),
        roles=roles,
        networks=_read(lambda: _read_networks(folder / NETWORKS_FILE), {}, problems),
        sessions=read_sessions(folder, problems.append),
        faults=_read_faults(folder / FAULTS_FILE),
        lineage=_read_lineage(folder, problems.append),
        videos=_find_videos(folder),
        problems=[line.replace(f"{folder}{os.sep}", "") for line in problems],
    )


def _read(read: Callable[[], Any], otherwise: Any, problems: list[str]) -> Any:
    """Return what `read` returns; `otherwise` if it raises UserError, whose message is a problem."""
    try:
        return read()
    except UserError as error:
        problems.append(" ".join(str(error).split()))
        return otherwise


def _find_differences(settings: Tree) -> list[Difference]:
    """Return the settings that differ from the defaults."""
    if not settings:
        return []
    unused = _list_unused_sections(settings)
    return [
        Difference(path=path, before=old, after=new)
        for path, old, new in find_changes(load_defaults(), settings)
        if not WITHOUT_EFFECT.fullmatch(path) and path.partition(".")[0] not in unused
    ]


def _list_unused_sections(settings: Tree) -> set[str]:
    """Return the names of the sections of algorithms that no role of a run uses."""
    trees = [settings, *(settings.get("ma_config") or {}).values()]
    used = {str((tree.get("base_config") or {}).get("algorithm")) for tree in trees}
    return {get_agent_section(name) for name in AGENTS} - {get_agent_section(name) for name in used}


def _find_resume_changes(history: ConfigHistory, log: Callable[[str], None]) -> list[Difference]:
    """Return the settings that changed when the run was resumed, oldest first."""
    trees = history.read_all(log)
    return [
        Difference(path=path, before=old, after=new, env_steps=env_steps)
        for (_, before), (env_steps, after) in zip(trees, trees[1:], strict=False)
        for path, old, new in find_changes(before, after)
    ]


def _read_networks(path: Path) -> Mapping[str, Any]:
    """Return the networks by role; empty for a run of a version that did not record them. Raises UserError."""
    try:
        return read_json(path, dict[str, NetworkRecord]) or {}
    except RecordError as error:
        raise UserError(f"{error}: the report has no networks") from error


def _read_faults(path: Path) -> list[str]:
    """Return the messages of a faults.log, oldest first, after those of its older part."""
    lines: list[str] = []
    for part in (path.with_name(f"{path.name}.1"), path):
        if part.exists():
            lines += part.read_text(encoding="utf-8", errors="replace").splitlines()
    return [line for line in lines if line.strip()]


def _read_lineage(folder: Path, log: Callable[[str], None]) -> Lineage | None:
    """Return the intervals of a member of a population; None for another run."""
    match = MEMBER_NAME.fullmatch(folder.name)
    if match is None or not (folder.parent / match["population"] / POPULATION_FILE).is_file():
        return None
    population, member = folder.parent / match["population"], int(match["member"])
    rows = [row for row in PopulationRecord(population).read_lineage(log) if row.member == member]
    return Lineage(population=population.name, member=member, rows=rows)


def _find_videos(folder: Path) -> list[Path]:
    """Return the videos of a run, relative to its folder, those with the most env steps first."""

    def get_order(path: Path) -> tuple[int, str]:
        steps = path.stem.partition("-")[0]
        return (-int(steps) if steps.isdecimal() else 0, path.name)

    files = [path.relative_to(folder) for path in (folder / VIDEO_FOLDER).glob("*") if path.suffix in VIDEO_SUFFIXES]
    return sorted(files, key=get_order)
