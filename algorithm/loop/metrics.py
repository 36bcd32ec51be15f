"""Where numbers go: TensorBoard events and one CSV table."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

TABLE = "metrics.csv"


class Metrics:
    """Writes rows of named numbers by env_steps; a CSV column appears when its name does."""

    def __init__(self, folder: Path):
        self.table = folder / TABLE
        self.events = SummaryWriter(folder / "tensorboard")
        self.columns: list[str] = []
        if self.table.exists():
            with self.table.open(newline="") as file:
                self.columns = next(csv.reader(file), [])

    def write(self, env_steps: int, values: Mapping[str, float]) -> None:
        """Append one row."""
        for name, value in values.items():
            self.events.add_scalar(name, value, env_steps)
        row = {"env_steps": env_steps, **values}
        if new := [name for name in row if name not in self.columns]:
            self._widen(new)
        with self.table.open("a", newline="") as file:
            csv.DictWriter(file, self.columns).writerow(row)

    def close(self) -> None:
        """Flush everything."""
        self.events.close()

    def _widen(self, new: list[str]) -> None:
        """Rewrite the table with more columns, whole or not at all."""
        rows = []
        if self.table.exists():
            with self.table.open(newline="") as file:
                rows = list(csv.DictReader(file))
        self.columns += new
        fresh = self.table.with_suffix(".new")
        with fresh.open("w", newline="") as file:
            writer = csv.DictWriter(file, self.columns)
            writer.writeheader()
            writer.writerows(rows)
        fresh.replace(self.table)
