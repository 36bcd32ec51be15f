"""The metrics of a run as arrays, with gaps where lines of metrics.csv are damaged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from algorithm.records_io import NumberTable
from algorithm.specs import Role
from algorithm.training.metrics import EVALUATION_COLUMN, STEPS_COLUMN

RETURN_COLUMN = "rollout/return"


@dataclass(frozen=True, kw_only=True)
class RunMetrics:
    """The columns of metrics.csv.

    Attributes:
        columns: numbers of each column [n] by its name; NaN for an empty cell, and in a row that stands for damaged
            lines, except for its env steps.
        is_gap: [n] bool: rows that stand for damaged lines.
        roles: names of roles and teams, which end the names of columns.
    """

    columns: Mapping[str, np.ndarray]
    is_gap: np.ndarray
    roles: tuple[str, ...]

    def get_rows(self, column: str, *others: str) -> list[np.ndarray]:
        """Return env steps and columns [m] of the rows with a value in the first column, and NaN for each gap."""
        kept = np.isfinite(self.columns[column]) | self.is_gap
        return [self.columns[name][kept] for name in (STEPS_COLUMN, column, *others)]

    def find_last(self, column: str) -> float | None:
        """Return the last value of a column; None if it has none."""
        values = self.columns.get(column, np.empty(0))
        known = values[np.isfinite(values)]
        return float(known[-1]) if len(known) else None

    def list_metrics(self) -> dict[str, dict[str, str]]:
        """Return the columns {metric: {role: column}}; the role is empty for a metric of the whole run."""
        found: dict[str, dict[str, str]] = {}
        for column in self.columns:
            if column != STEPS_COLUMN:
                metric, role = self.split_column(column)
                found.setdefault(metric, {})[role] = column
        return found

    def split_column(self, column: str) -> tuple[str, str]:
        """Return the metric and the role of a column."""
        for role in self.roles:
            if column.endswith(f"/{role}"):
                return column.removesuffix(f"/{role}"), role
        return column, ""


def make_metrics(table: NumberTable, roles: Mapping[str, Role]) -> RunMetrics:
    """Return the metrics of a run with these roles; there are no columns if no row can be read."""
    gaps = np.array(table.gaps, int)
    columns = {
        name: np.insert(np.array([float(row[name] or "nan") for row in table.rows]), gaps, np.nan)
        for name in table.columns
    }
    n_rows = len(table.rows)
    is_gap = np.insert(np.zeros(n_rows, bool), gaps, True)
    if n_rows:  # a gap has the env steps of the row before it, or of the first row
        rows = np.maximum(np.cumsum(~is_gap) - 1, 0)
        columns[STEPS_COLUMN] = columns[STEPS_COLUMN][~is_gap][rows]
    names = [name for role, spec in roles.items() for name in (role, *spec.count_lanes_by_team(role))]
    names += [
        column.removeprefix(f"{start}/")
        for start in (RETURN_COLUMN, EVALUATION_COLUMN)
        for column in columns
        if column.startswith(f"{start}/")
    ]
    return RunMetrics(
        columns=columns if n_rows else {}, is_gap=is_gap, roles=tuple(sorted(set(names), key=len, reverse=True))
    )
