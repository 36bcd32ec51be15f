"""The table of a run's metrics, as it is read: damaged lines are left out and counted."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

TABLE_FILE = "metrics.csv"
STEPS_COLUMN = "env_steps"  # the one column that every row fills
EVALUATION_COLUMN = (
    "eval/return"  # the column of a mean return over evaluation episodes; that of a role has /<role> after it
)


@dataclass(frozen=True)
class MetricsTable:
    """The columns of a table, its rows with each cell as text, and how many of its lines are damaged."""

    columns: list[str]
    rows: list[dict[str, str]]
    damaged: int


def read_table(path: Path) -> MetricsTable:
    """Read a table. A last line without its end is left out and not counted as damaged.

    If the first line, which names the columns, is damaged, so are all. Raises FileNotFoundError.
    """
    lines = path.read_bytes().decode("utf-8", errors="replace").rpartition("\n")[0].splitlines()
    columns = _split_cells(lines[0]) if lines else []
    if STEPS_COLUMN not in columns or any("\ufffd" in name for name in columns) or len(set(columns)) < len(columns):
        return MetricsTable([], [], len(lines))
    rows = [
        dict(zip(columns, cells, strict=True))
        for line in lines[1:]
        if _is_complete(columns, cells := _split_cells(line))
    ]
    return MetricsTable(columns, rows, len(lines) - 1 - len(rows))


def mean_evaluations(table: MetricsTable) -> dict[int, float]:
    """Return the mean return over all roles of each evaluation, by its env steps."""
    result = {}
    for row in table.rows:
        means = [float(cell) for name, cell in row.items() if f"{name}/".startswith(f"{EVALUATION_COLUMN}/") and cell]
        if means:
            result[int(row[STEPS_COLUMN])] = fmean(means)
    return result


def _split_cells(line: str) -> list[str]:
    """Parse one line; a stray quote then affects no other line."""
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return []


def _is_complete(columns: list[str], cells: list[str]) -> bool:
    """Return whether these are the cells of a row: integer env steps, and a number or nothing in all others."""
    if len(cells) != len(columns):
        return False
    try:
        int(cells[columns.index(STEPS_COLUMN)])
        for cell in cells:
            float(cell or 0)
    except ValueError:
        return False
    return True
