"""Members of a population: their plans and lineage in its folder, and their training until the end of an interval."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import TypeAdapter

from algorithm.config.yaml_layers import Tree, load_defaults, make_tree, merge
from algorithm.errors import UserError
from algorithm.parts.env_folder import POPULATION_FILE
from algorithm.parts.lock import FolderLock, check_links
from algorithm.parts.run_folder import RunFolder
from algorithm.records_io import RecordError, read_json, write_json, write_json_lines
from algorithm.runs.callbacks import RunResult
from algorithm.runs.lineage import LINEAGE_FILE, LineageRow, read_lineage

SOURCE = "the settings of the member"
LOG_FILE = "log.txt"
RunTraining = Callable[..., RunResult]  # trains in a run folder, given settings, log and the env steps to `pause_at`


@dataclass(frozen=True, kw_only=True)
class MemberPlan:
    """The start of one member in an interval.

    Attributes:
        parent: the number of the member whose checkpoint it continues with; its own number if it copies none.
        settings: the values of the settings that differ between members, by path.
    """

    parent: int
    settings: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class PopulationState:
    """The state of a population between two exchanges.

    Attributes:
        interval: number of the current interval, from 1.
        members: the plan of each member, of which the first has the number 1.
        elites: the numbers of the members from whose weights those of all members are drawn; empty: no draw.
        is_transferred: whether the checkpoints of all members are as their plans require.
        exchange: state of the exchange.
    """

    interval: int
    members: Sequence[MemberPlan]
    elites: Sequence[int] = ()
    is_transferred: bool = True
    exchange: Mapping[str, Any] = field(default_factory=dict)


class PopulationFolder:
    """The folder runs/<environment>/<name>/ of `size` members; the run folder of member k is <name>-<k>, next to it."""

    def __init__(self, path: Path, size: int):
        self.path, self.size = path, size
        self.members = [RunFolder(path.with_name(f"{path.name}-{k + 1}")) for k in range(size)]
        self.lock = FolderLock(path, str(path))  # a process holds it while it trains the population
        self.state_path, self.lineage_path = path / POPULATION_FILE, path / LINEAGE_FILE

    def has_learned(self) -> bool:
        """Return whether metrics or a checkpoint of a member exist."""
        return any(member.has_learned() for member in self.members)

    def read_state(self) -> PopulationState:
        """Return the plan of the current interval. Raises UserError if it cannot be read."""
        try:
            state = read_json(self.state_path, PopulationState)
        except RecordError as error:
            raise UserError(
                f"{error}: the population cannot continue; play its members or resume them as single runs, or train a "
                "new population"
            ) from error
        if state is None:
            raise UserError(f"{self.state_path} is missing: train a new population")
        return state

    def write_state(self, state: PopulationState) -> None:
        """Replace the plan of the current interval."""
        write_json(self.state_path, asdict(state), is_sealed=True)

    def read_lineage(self, log: Callable[[str], None]) -> list[LineageRow]:
        """Return all rows that can be read; `log` receives a line if any cannot."""
        return read_lineage(self.path, log)

    def write_lineage(self, rows: Sequence[LineageRow]) -> None:
        """Replace all rows."""
        records = TypeAdapter(list[LineageRow]).dump_python(list(rows), by_alias=True)
        write_json_lines(self.lineage_path, records, is_sealed=True)


def find_best(rows: Sequence[LineageRow]) -> LineageRow | None:
    """Return the row that reached the goal, or else the row with the highest return; of equal ones the last."""
    evaluated = [row for row in rows if row.mean_return is not None]
    return max(evaluated, key=lambda row: (bool(row.goal_reached), row.mean_return, row.interval), default=None)


class MemberFailed(Exception):
    """A member could not be trained until the end of an interval; if `is_final`, another attempt would fail, too."""

    def __init__(self, message: str, is_final: bool = False):
        super().__init__(message)
        self.is_final = is_final


@dataclass(frozen=True, kw_only=True)
class Members:
    """The members of a population, for any process that trains one.

    Everything that an interval needs is in the run folder of the member, so that any process can train any member.
    """

    folders: tuple[Path, ...]  # the run folder of each member
    tree: Tree  # the settings of the population
    train: RunTraining

    def run_task(self, task: LineageRow) -> LineageRow:
        """Train a member until the end of an interval, from its newest checkpoint. Return the row as it has ended.

        Raises:
            Exception: those of `algorithm.runs.build.train`.
        """
        folder = RunFolder(self.folders[task.member - 1])
        check_links(folder.given_path)
        settings = folder.load_settings((SOURCE, make_member_tree(self.tree, task.member, task.settings)))
        with folder.lock, (folder.path / LOG_FILE).open("a", encoding="utf-8") as file:
            log = partial(print, file=file, flush=True)
            result = self.train(folder, settings, log=log, pause_at=task.env_steps)
        returns = list(result.returns.values())
        if result.evaluation is not None:
            returns = [played.mean for played in result.evaluation.values()]
        return replace(
            task,
            env_steps=result.counters.env_steps,
            mean_return=fmean(returns),
            goal_reached=bool(result.goal_reached),
            goal=settings.goal.return_ if settings.goal else None,
        )


def make_member_tree(tree: Tree, member: int, values: Mapping[str, Any]) -> Tree:
    """Return the settings of a member, which is a separate run whose seed follows from its number.

    `values` are the settings that differ between members, by path. On a cluster, the members have no rollout actors:
    each one trains as in one process.
    """
    own = merge(tree, {"base_config": {"seed": tree["base_config"]["seed"] + member - 1}})
    own |= {section: load_defaults()[section] for section in ("population_config", "cluster_config")}
    if tree["base_config"]["runtime"].casefold() == "cluster":
        own = merge(own, {"base_config": {"runtime": "LOCAL"}})
    return merge(own, make_tree(values))
