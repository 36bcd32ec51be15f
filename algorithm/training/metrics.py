"""Where numbers go: TensorBoard events and one CSV table."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from algorithm.checkpointing.atomic_io import DAMAGED_PREFIX
from algorithm.training.metrics_table import STEPS_COLUMN, TABLE_FILE, read_table


class MetricsWriter:
    """Writes rows of named numbers by env_steps; a CSV column appears when its name does.

    Rows of a resumed run after `env_steps` are dropped: they come again. So are damaged lines of its table; `log`
    receives their number, and a copy is kept.
    """

    def __init__(self, folder: Path, env_steps: int = 0, log: Callable[[str], None] = print):
        from torch.utils.tensorboard import SummaryWriter  # which takes a while to import

        self.table = folder / TABLE_FILE
        resumed = env_steps > 0 or self.table.exists()
        self.events = SummaryWriter(folder / "tensorboard", purge_step=env_steps + 1 if resumed else None)
        self.columns: list[str] = []
        if resumed:
            self._rewind(env_steps, log)

    def write(self, env_steps: int, values: Mapping[str, float]) -> None:
        """Append one row."""
        for name, value in values.items():
            self.events.add_scalar(name, value, env_steps)
        row = {STEPS_COLUMN: env_steps, **values}
        if new := [name for name in row if name not in self.columns]:
            self._add_columns(new)
        with self.table.open("a", newline="", encoding="utf-8") as file:
            csv.DictWriter(file, self.columns).writerow(row)

    def close(self) -> None:
        """Flush everything."""
        self.events.close()

    def _rewind(self, env_steps: int, log: Callable[[str], None]) -> None:
        """Rewrite the table without later rows, damaged ones, and a last one that was not written to its end."""
        try:
            table = read_table(self.table)
        except FileNotFoundError:
            log(f"{self.table} is missing: the metrics of this run start at {env_steps:,} env steps")
            return
        if table.damaged:
            copy = self.table.with_name(f"{DAMAGED_PREFIX}{TABLE_FILE}")
            shutil.copy2(self.table, copy)
            log(f"{self.table} is damaged: {table.damaged} of its lines are dropped; {copy.name} is a copy as it was")
        self.columns = table.columns
        if not table.columns:
            self.table.unlink()
            return
        self._rewrite([row for row in table.rows if int(row[STEPS_COLUMN]) <= env_steps])

    def _add_columns(self, new: list[str]) -> None:
        """Rewrite the table with more columns, whole or not at all."""
        rows = read_table(self.table).rows if self.table.exists() else []
        self.columns += new
        self._rewrite(rows)

    def _rewrite(self, rows: list[dict[str, str]]) -> None:
        temporary = self.table.with_suffix(".new")
        with temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.columns)
            writer.writeheader()
            writer.writerows(rows)
        temporary.replace(self.table)
