"""The folder of a population: the plan of its current interval, the lineage of its members, and their run folders."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from algorithm.errors import UserError
from algorithm.parts.env_folder import POPULATION_FILE
from algorithm.parts.lock import FolderLock
from algorithm.parts.run_folder import RunFolder
from algorithm.records_io import RecordError, read_json, read_json_lines, write_json, write_json_lines

LINEAGE_FILE = "lineage.jsonl"


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


@dataclass(frozen=True, kw_only=True)
class LineageRow:
    """One interval of one member: as it is planned, which is the task to train the member, and as it has ended.

    Attributes:
        interval: number of the interval, from 1.
        member: number of the member, from 1.
        parent: number of the member whose checkpoint it started with.
        env_steps: env steps of the run at the end of the interval.
        settings: values of the settings that differ between members, by path.
        mean_return: mean return of the evaluation at the end; None in a plan, or if the member failed. Its key is
            `return`.
        goal_reached: whether it has reached and confirmed its goal.
        goal: mean return that was its goal; None without one, in a plan, or if the member failed.
    """

    interval: int
    member: int
    parent: int
    env_steps: int
    settings: Mapping[str, Any]
    mean_return: Annotated[float | None, Field(alias="return")]
    goal_reached: bool = False
    goal: float | None = None


class PopulationFolder:
    """The folder runs/<environment>/<name>/ of a population.

    Args:
        path: the folder.
        size: the number of members; the run folder of member k is <name>-<k>, next to it.
    """

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
        rows, problem = read_json_lines(self.lineage_path, LineageRow)
        if problem:
            log(f"{problem}: these intervals are left out")
        return rows

    def write_lineage(self, rows: Sequence[LineageRow]) -> None:
        """Replace all rows."""
        records = TypeAdapter(list[LineageRow]).dump_python(list(rows), by_alias=True)
        write_json_lines(self.lineage_path, records, is_sealed=True)


def find_best(rows: Sequence[LineageRow]) -> LineageRow | None:
    """Return the row that reached the goal, or else the row with the highest return; of equal ones the last."""
    evaluated = [row for row in rows if row.mean_return is not None]
    return max(evaluated, key=lambda row: (bool(row.goal_reached), row.mean_return, row.interval), default=None)
