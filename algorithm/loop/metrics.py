"""Where numbers go: TensorBoard events and one CSV table."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

TABLE = "metrics.csv"


class Metrics:
    """Writes rows of named numbers by env_steps; a CSV column appears when its name does.

    What a run wrote behind `env_steps`, where it goes on now, is dropped: it will come again.
    """

    def __init__(self, folder: Path, env_steps: int = 0):
        from torch.utils.tensorboard import SummaryWriter  # which takes a while to import

        self.table = folder / TABLE
        resumed = self.table.exists()
        self.events = SummaryWriter(folder / "tensorboard", purge_step=env_steps + 1 if resumed else None)
        self.columns: list[str] = []
        if resumed:
            self._rewind(env_steps)

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

    def _rewind(self, env_steps: int) -> None:
        """Rewrite the table without later rows, and without a last one that was not written to its end."""
        with self.table.open(newline="") as file:
            whole = file.read().rpartition("\n")[0]
        reader = csv.DictReader(whole.splitlines())
        rows = [row for row in reader if int(row["env_steps"]) <= env_steps]
        self.columns = list(reader.fieldnames or [])
        self._rewrite(rows)

    def _widen(self, new: list[str]) -> None:
        """Rewrite the table with more columns, whole or not at all."""
        rows = []
        if self.table.exists():
            with self.table.open(newline="") as file:
                rows = list(csv.DictReader(file))
        self.columns += new
        self._rewrite(rows)

    def _rewrite(self, rows: list[dict[str, str]]) -> None:
        fresh = self.table.with_suffix(".new")
        with fresh.open("w", newline="") as file:
            writer = csv.DictWriter(file, self.columns)
            writer.writeheader()
            writer.writerows(rows)
        fresh.replace(self.table)
