"""The learning curve of a run, as a picture in its folder."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np

from algorithm.loop.table import EVALUATION, TABLE, read_table

CURVE = "curve.png"
TRAINING, LOW, HIGH = "reward/return", "eval/return_low", "eval/return_high"
Columns = dict[str, np.ndarray]


def draw_curve(folder: Path, goal: float | None, say: Callable[[str], None]) -> Path | None:
    """Draw curve.png from the metrics of a run; None, with the reason said, where it cannot be drawn."""
    try:
        # It tells of its caches and fonts, which is nothing to the user of a run.
        logging.getLogger("matplotlib").setLevel(logging.ERROR)
        from matplotlib.figure import Figure
    except ImportError:
        say(f'no {CURVE}, since matplotlib is not installed: pip install -e ".[report]"')
        return None
    try:
        columns = read_columns(folder / TABLE)
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.subplots()
        for number, role in enumerate(_roles(columns)):
            _draw_role(axes, columns, role, f"C{number}")
        if goal is not None:
            axes.axhline(goal, color="0.4", linestyle="--", linewidth=1, label="goal")
        axes.set(xlabel="env steps", ylabel="return", title=folder.name)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="best", frameon=False)
        figure.savefig(folder / CURVE, dpi=120)
    except Exception as error:  # a picture is worth no run, whatever went wrong with it
        say(f"no {CURVE}: {type(error).__name__}: {error}")
        return None
    return folder / CURVE


def read_columns(table: Path) -> Columns:
    """The numbers of a CSV table by column; NaN where a row has none. Raises ValueError for a table without a row."""
    read = read_table(table)
    if not read.rows:
        raise ValueError(f"{table.name} has no row that can be read")
    return {name: np.array([float(row[name] or "nan") for row in read.rows]) for name in read.columns}


def _roles(columns: Columns) -> list[str]:
    """What stands behind the names of each role's columns: nothing, or / and its name."""
    found = [name.removeprefix(start) for start in (TRAINING, EVALUATION) for name in columns if name.startswith(start)]
    return list(dict.fromkeys(rest for rest in found if not rest or rest.startswith("/")))


def _draw_role(axes, columns: Columns, role: str, color: str) -> None:
    env_steps = columns["env_steps"]
    of = f" of {role[1:]}" if role else ""
    if TRAINING + role in columns:
        x, y = _known(env_steps, columns[TRAINING + role])
        axes.plot(x, y, color=color, alpha=0.6, label=f"training{of}")
    if EVALUATION + role in columns:
        x, y, low, high = _known(env_steps, *(columns[name + role] for name in (EVALUATION, LOW, HIGH)))
        bars = np.array([y - low, high - y])
        axes.errorbar(x, y, bars, color=color, fmt="o", markersize=4, capsize=3, label=f"held-out{of}, 95% interval")


def _known(*columns: np.ndarray) -> list[np.ndarray]:
    """The rows in which every column has a number."""
    there = np.isfinite(columns).all(0)
    return [column[there] for column in columns]
