"""The metrics of a run: the table metrics.csv, trackers, and the format of numbers in text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass, replace
from math import floor, fsum, isfinite, isnan, log10
from pathlib import Path
from typing import TYPE_CHECKING

from algorithm.atomic_io import copy_aside
from algorithm.records_io import NumberTable, append_csv, read_csv, write_csv

if TYPE_CHECKING:  # a table is read without the services that show runs
    from algorithm.tracking.trackers import Tracker

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


def read_table(path: Path) -> NumberTable:
    """Read a metrics table without its damaged lines, as `read_csv` does."""
    return read_csv(path, STEPS_COLUMN)


def mean_evaluations(table: NumberTable) -> dict[int, float]:
    """Return {env steps: mean evaluation return over all roles}."""
    result = {}
    names = [name for name in table.columns if f"{name}/".startswith(f"{EVALUATION_COLUMN}/")]
    for row in table.rows:
        means = [float(row[name]) for name in names if row[name]]
        if means:
            result[int(row[STEPS_COLUMN])] = fsum(means) / len(means)
    return result


@dataclass(eq=False)
class MetricsWriter:
    """A writer of rows of named numbers, by env steps, to the table and to trackers.

    The table gets a new column with each new name. When a run is resumed at `env_steps`, later rows are removed from
    the table. Damaged lines are removed as well: a copy of the damaged table is kept, and `log` receives a line.

    Args:
        folder: the run folder.
        env_steps: the env steps at which the run is resumed; 0 for a new run.
        log: receives lines for the user.
        trackers: receive each row; the caller finishes them. None: no trackers.
    """

    folder: Path
    env_steps: InitVar[int] = 0
    log: InitVar[Callable[[str], None]] = print
    trackers: Tracker | None = None

    def __post_init__(self, env_steps: int, log: Callable[[str], None]) -> None:
        self.table = self.folder / TABLE_FILE
        self.columns: list[str] = []
        # Of the time before the run was resumed, as `mean_evaluations` returns them.
        self.earlier_evaluations: dict[int, float] = {}
        if not self.table.exists():
            if env_steps:
                log(f"{self.table} is missing: the metrics of this run start at {env_steps:,} env steps")
            return
        table = read_table(self.table)
        if table.damaged:
            copy = copy_aside(self.table)
            log(f"{self.table} is damaged: {table.damaged} of its lines are dropped; {copy.name} is a copy as it was")
        self.columns = table.columns
        if not table.columns:
            self.table.unlink(missing_ok=True)
            return
        # Without rows after `env_steps`, damaged lines, and an incomplete last line.
        kept = replace(table, rows=[row for row in table.rows if int(row[STEPS_COLUMN]) <= env_steps])
        self.earlier_evaluations = mean_evaluations(kept)
        write_csv(self.table, self.columns, kept.rows)

    def write(self, env_steps: int, values: Mapping[str, float]) -> None:
        """Append one row."""
        if self.trackers:
            self.trackers.log(env_steps, values)
        row = {STEPS_COLUMN: env_steps, **values}
        if new := [name for name in row if name not in self.columns]:
            rows = read_table(self.table).rows
            self.columns += new
            write_csv(self.table, self.columns, rows)
        append_csv(self.table, self.columns, [row])
