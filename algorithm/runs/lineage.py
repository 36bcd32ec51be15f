"""The lineage of a population: a row for each interval of each member, in a file of its folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from algorithm.records_io import read_json_lines

LINEAGE_FILE = "lineage.jsonl"


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


def read_lineage(population: Path, log: Callable[[str], None]) -> list[LineageRow]:
    """Return all rows of the lineage of a population, by its folder; `log` receives a line if any cannot be read."""
    rows, problem = read_json_lines(population / LINEAGE_FILE, LineageRow)
    if problem:
        log(f"{problem}: these intervals are left out")
    return rows
