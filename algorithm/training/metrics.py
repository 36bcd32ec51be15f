"""The metrics of a run: the table metrics.csv, trackers, and the format of numbers in text."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import floor, isfinite, isnan, log10
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from algorithm.atomic_io import DAMAGED_PREFIX, replace_bytes, replace_text
from algorithm.tracking.tracker import Tracker, TrackerList

if TYPE_CHECKING:  # runs are listed without numpy
    import numpy as np

TABLE_FILE = "metrics.csv"
STEPS_COLUMN = "env_steps"  # the only column without empty cells
EVALUATION_COLUMN = "eval/return"  # mean return over evaluation episodes; with several roles, /<role> follows
UNKNOWN = "-"
MAX_EXACT = 1e9  # numbers below it are formatted with all digits before the decimal point


def format_number(value: float | None) -> str:
    """Return `value` with four significant digits, three below 1; a dash for None and NaN.

    Digits before the decimal point are never rounded away: 0.955, 12.35, 478.2, 12,346.
    """
    if value is None or isnan(value):
        return UNKNOWN
    size = abs(float(f"{value:.4g}"))
    if size < 1:
        return f"{value:#.3g}"
    if size >= MAX_EXACT or not isfinite(size):
        return f"{value:.4g}"
    return f"{value:,.{max(0, 3 - floor(log10(size)))}f}"


@dataclass(frozen=True)
class MetricsTable:
    """The columns of a metrics table, its rows with each cell as text, and the number of its damaged lines.

    `gaps` are the indices of the rows that follow damaged lines; the number of rows for damaged lines at the end.
    """

    columns: list[str]
    rows: list[dict[str, str]]
    damaged: int
    gaps: tuple[int, ...] = ()


def read_table(path: Path) -> MetricsTable:
    """Read a metrics table without its damaged lines.

    An incomplete last line is left out and not counted as damaged. If the first line, which has the names of the
    columns, is damaged, all lines count as damaged.

    Raises:
        FileNotFoundError: the table does not exist.
    """
    lines = path.read_bytes().decode("utf-8", errors="replace").rpartition("\n")[0].splitlines()
    columns = _split_cells(lines[0]) if lines else []
    if STEPS_COLUMN not in columns or any("\ufffd" in name for name in columns) or len(set(columns)) < len(columns):
        return MetricsTable([], [], len(lines))
    rows: list[dict[str, str]] = []
    gaps: dict[int, None] = {}
    for line in lines[1:]:
        if _is_complete(columns, cells := _split_cells(line)):
            rows.append(dict(zip(columns, cells, strict=True)))
        else:
            gaps[len(rows)] = None
    return MetricsTable(columns, rows, len(lines) - 1 - len(rows), tuple(gaps))


def read_table_if_present(path: Path) -> MetricsTable:
    """Read a metrics table without its damaged lines; one without columns if it does not exist."""
    return read_table(path) if path.exists() else MetricsTable([], [], 0)


def mean_evaluations(table: MetricsTable) -> dict[int, float]:
    """Return {env steps: mean evaluation return over all roles}."""
    result = {}
    names = [name for name in table.columns if f"{name}/".startswith(f"{EVALUATION_COLUMN}/")]
    for row in table.rows:
        means = [float(row[name]) for name in names if row[name]]
        if means:
            result[int(row[STEPS_COLUMN])] = fmean(means)
    return result


def _split_cells(line: str) -> list[str]:
    """Return the cells of one line, which is parsed separately, so a stray quotation mark affects no other line."""
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


class MetricsWriter:
    """A writer of rows of named numbers, by env steps, to the table and to trackers.

    The table gets a new column with each new name. When a run is resumed at `env_steps`, later rows are removed from
    the table. Damaged lines are removed as well: a copy of the damaged table is kept, and `log` receives a line.

    Args:
        folder: the run folder.
        env_steps: the env steps at which the run is resumed; 0 for a new run.
        log: receives lines for the user.
        trackers: receive each row and each histogram; the caller finishes them.
    """

    def __init__(
        self,
        folder: Path,
        env_steps: int = 0,
        log: Callable[[str], None] = print,
        trackers: Tracker | None = None,
    ):
        self.table = folder / TABLE_FILE
        self.trackers = trackers or TrackerList({})
        self.columns: list[str] = []
        self.evaluated_at: int | None = None  # env steps of the last evaluation before the run was resumed
        if env_steps > 0 or self.table.exists():
            self._rewind(env_steps, log)

    def write(self, env_steps: int, values: Mapping[str, float]) -> None:
        """Append one row."""
        self.trackers.log(env_steps, values)
        row = {STEPS_COLUMN: env_steps, **values}
        if new := [name for name in row if name not in self.columns]:
            self._add_columns(new)
        with self.table.open("a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self.columns).writerow(row)

    def write_histograms(self, env_steps: int, values: Mapping[str, np.ndarray]) -> None:
        """Pass histograms of arrays to the trackers, by name."""
        self.trackers.log_histograms(env_steps, values)

    def _rewind(self, env_steps: int, log: Callable[[str], None]) -> None:
        """Rewrite the table without rows after `env_steps`, damaged lines, and an incomplete last line."""
        try:
            table = read_table(self.table)
        except FileNotFoundError:
            log(f"{self.table} is missing: the metrics of this run start at {env_steps:,} env steps")
            return
        if table.damaged:
            copy = self.table.with_name(f"{DAMAGED_PREFIX}{TABLE_FILE}")
            replace_bytes(copy, self.table.read_bytes())
            log(f"{self.table} is damaged: {table.damaged} of its lines are dropped; {copy.name} is a copy as it was")
        self.columns = table.columns
        if not table.columns:
            self.table.unlink()
            return
        kept = replace(table, rows=[row for row in table.rows if int(row[STEPS_COLUMN]) <= env_steps])
        self.evaluated_at = max(mean_evaluations(kept), default=None)
        self._rewrite(kept.rows)

    def _add_columns(self, new: list[str]) -> None:
        rows = read_table(self.table).rows if self.table.exists() else []
        self.columns += new
        self._rewrite(rows)

    def _rewrite(self, rows: list[dict[str, str]]) -> None:
        """Replace the table in one operation, so that an interruption leaves the old table or the new one."""
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self.columns)
        writer.writeheader()
        writer.writerows(rows)
        replace_text(self.table, text.getvalue())
