"""The records of a population on disk: the plan of its current interval, and the lineage of its members."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from algorithm.atomic_io import replace_text
from algorithm.errors import UserError

STATE_FILE, LINEAGE_FILE = "population.json", "lineage.jsonl"


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
    """One interval of one member.

    Attributes:
        interval: number of the interval, from 1.
        member: number of the member, from 1.
        parent: number of the member whose checkpoint it started with.
        env_steps: env steps of the run at the end of the interval.
        settings: values of the settings that differ between members, by path.
        mean_return: mean return of the evaluation at the end; None if the member failed. Its key is `return`.
        goal_reached: whether it has reached and confirmed its goal.
        goal: mean return that was its goal; None without one, or if the member failed.
    """

    interval: int
    member: int
    parent: int
    env_steps: int
    settings: Mapping[str, Any]
    mean_return: float | None
    goal_reached: bool = False
    goal: float | None = None


class PopulationRecord:
    """The files population.json and lineage.jsonl in the folder of a population."""

    def __init__(self, folder: Path):
        self.state_path, self.lineage_path = folder / STATE_FILE, folder / LINEAGE_FILE

    def read_state(self) -> PopulationState:
        """Return the plan of the current interval. Raises UserError if it cannot be read."""
        try:
            fields = json.loads(self.state_path.read_text(encoding="utf-8"))
            members = [MemberPlan(**plan) for plan in fields.pop("members")]
            return PopulationState(members=members, **fields)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{self.state_path} is damaged ({error}): train a new population") from error

    def write_state(self, state: PopulationState) -> None:
        """Replace the plan of the current interval."""
        replace_text(self.state_path, json.dumps(asdict(state), indent=1) + "\n")

    def read_lineage(self) -> list[LineageRow]:
        """Return all rows; an incomplete last line is left out. Raises UserError for another one."""
        if not self.lineage_path.exists():
            return []
        lines = self.lineage_path.read_text(encoding="utf-8").splitlines(keepends=True)
        rows = []
        for number, line in enumerate(lines, 1):
            try:
                fields = json.loads(line)
                rows.append(LineageRow(mean_return=fields.pop("return"), **fields))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                if number == len(lines):
                    break
                raise UserError(f"{self.lineage_path}, line {number} is damaged ({error}): correct it") from error
        return rows

    def write_lineage(self, rows: Sequence[LineageRow]) -> None:
        """Replace all rows."""
        replace_text(self.lineage_path, "".join(f"{_format_row(row)}\n" for row in rows))


def _format_row(row: LineageRow) -> str:
    fields = asdict(row)
    return json.dumps({("return" if key == "mean_return" else key): value for key, value in fields.items()})
