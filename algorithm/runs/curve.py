"""The learning curve of a run, as a picture in its folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from algorithm.runs.chart import COLORS, Series, draw_chart
from algorithm.training.metrics_table import EVALUATION, TABLE, read_table

CURVE = "curve.png"
TRAINING, LOW, HIGH = "rollout/return", "eval/return_low", "eval/return_high"
Columns = dict[str, np.ndarray]


def draw_curve(folder: Path, goal: float | None, say: Callable[[str], None]) -> Path | None:
    """Draw curve.png from the metrics of a run; None, with the reason logged by `say`, if that fails."""
    try:
        columns = read_columns(folder / TABLE)
        series = [one for number, role in enumerate(_roles(columns)) for one in _series(columns, role, number)]
        draw_chart(folder / CURVE, folder.name, ("env steps", "return"), series, goal)
    except Exception as error:  # a picture is worth no run, whatever went wrong with it
        say(f"no {CURVE}: {type(error).__name__}: {error}")
        return None
    return folder / CURVE


def read_columns(table: Path) -> Columns:
    """Return the numbers of a CSV table by column; NaN for empty cells. Raises ValueError for a table without a row."""
    read = read_table(table)
    if not read.rows:
        raise ValueError(f"{table.name} has no row that can be read")
    return {name: np.array([float(row[name] or "nan") for row in read.rows]) for name in read.columns}


def _roles(columns: Columns) -> list[str]:
    """What stands behind the names of each role's columns: nothing, or / and its name."""
    found = [name.removeprefix(start) for start in (TRAINING, EVALUATION) for name in columns if name.startswith(start)]
    return list(dict.fromkeys(rest for rest in found if not rest or rest.startswith("/")))


def _series(columns: Columns, role: str, number: int) -> Iterator[Series]:
    """Yield the training returns of a role as a line, and its evaluations as points with intervals."""
    env_steps, of = columns["env_steps"], f" of {role[1:]}" if role else ""
    line, points = COLORS[2 * number % len(COLORS)], COLORS[(2 * number + 1) % len(COLORS)]
    if TRAINING + role in columns:
        x, y = _known(env_steps, columns[TRAINING + role])
        yield Series(label=f"training{of}", color=line, x=x, y=y)
    if EVALUATION + role in columns:
        x, y, low, high = _known(env_steps, *(columns[name + role] for name in (EVALUATION, LOW, HIGH)))
        yield Series(label=f"evaluation{of}, 95% interval", color=points, x=x, y=y, low=low, high=high)


def _known(*columns: np.ndarray) -> list[np.ndarray]:
    """The rows in which every column has a number."""
    there = np.isfinite(columns).all(0)
    return [column[there] for column in columns]
