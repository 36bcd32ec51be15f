"""The table of all runs with their results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from algorithm.runs.env_folder import RUNS
from algorithm.runs.results import COLUMNS, Record, format_record


def make_table(records: Sequence[Record]) -> Table:
    """Return a table with a row for each run; texts are aligned to the left, numbers to the right."""
    table = Table()
    for name in COLUMNS:
        table.add_column(
            name,
            overflow="fold" if name == "run" else "ellipsis",
            justify="left" if name in ("run", "algorithm", "result") else "right",
        )
    for record in records:
        table.add_row(Path(record["run"]).relative_to(RUNS).as_posix(), *format_record(record))
    return table
