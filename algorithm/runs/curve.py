"""The learning curve of a run, as a picture in its folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from algorithm.runs.chart import COLORS, Series, draw_chart
from algorithm.training.metrics_table import EVALUATION_COLUMN, TABLE_FILE, read_table

CURVE_FILE = "curve.png"
TRAINING_COLUMN, LOW_COLUMN, HIGH_COLUMN = "rollout/return", "eval/return_low", "eval/return_high"
ColumnArrays = dict[str, np.ndarray]


def draw_curve(folder: Path, goal: float | None, log: Callable[[str], None]) -> Path | None:
    """Draw curve.png from the metrics of a run; None, with the reason logged by `log`, if that fails."""
    try:
        columns = read_columns(folder / TABLE_FILE)
        series = [
            one
            for number, role in enumerate(_find_role_suffixes(columns))
            for one in _make_series(columns, role, number)
        ]
        draw_chart(folder / CURVE_FILE, folder.name, ("env steps", "return"), series, goal)
    except Exception as error:  # a picture is worth no run, whatever went wrong with it
        log(f"no {CURVE_FILE}: {type(error).__name__}: {error}")
        return None
    return folder / CURVE_FILE


def read_columns(table: Path) -> ColumnArrays:
    """Return the numbers of a CSV table by column; NaN for empty cells. Raises ValueError for a table without a row."""
    table_content = read_table(table)
    if not table_content.rows:
        raise ValueError(f"{table.name} has no row that can be read")
    return {name: np.array([float(row[name] or "nan") for row in table_content.rows]) for name in table_content.columns}


def _find_role_suffixes(columns: ColumnArrays) -> list[str]:
    """What stands behind the names of each role's columns: nothing, or / and its name."""
    found = [
        name.removeprefix(start)
        for start in (TRAINING_COLUMN, EVALUATION_COLUMN)
        for name in columns
        if name.startswith(start)
    ]
    return list(dict.fromkeys(rest for rest in found if not rest or rest.startswith("/")))


def _make_series(columns: ColumnArrays, role: str, number: int) -> Iterator[Series]:
    """Yield the training returns of a role as a line, and its evaluations as points with intervals."""
    env_steps, suffix = columns["env_steps"], f" of {role[1:]}" if role else ""
    line, points = COLORS[2 * number % len(COLORS)], COLORS[(2 * number + 1) % len(COLORS)]
    if TRAINING_COLUMN + role in columns:
        x, y = _drop_unknown(env_steps, columns[TRAINING_COLUMN + role])
        yield Series(label=f"training{suffix}", color=line, x=x, y=y)
    if EVALUATION_COLUMN + role in columns:
        x, y, low, high = _drop_unknown(
            env_steps, *(columns[name + role] for name in (EVALUATION_COLUMN, LOW_COLUMN, HIGH_COLUMN))
        )
        yield Series(label=f"evaluation{suffix}, 95% interval", color=points, x=x, y=y, low=low, high=high)


def _drop_unknown(*columns: np.ndarray) -> list[np.ndarray]:
    """The rows in which every column has a number."""
    is_known = np.isfinite(columns).all(0)
    return [column[is_known] for column in columns]
