"""The learning curve of a run, as a picture in its folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from algorithm.training.metrics import TABLE_FILE, read_table

if TYPE_CHECKING:  # runs are listed without numpy
    from algorithm.tools.reports.run_data import RunMetrics

CURVE_FILE = "curve.png"


def draw_curve(
    folder: Path, goal: float | None, log: Callable[[str], None], metrics: RunMetrics | None = None
) -> Path | None:
    """Draw curve.png from the metrics of a run.

    Args:
        folder: folder of the run.
        goal: mean return of the goal, drawn as a dashed line; None without a goal.
        log: function that receives the reason if drawing fails.
        metrics: its metrics.csv, which is slow to read; None to read it.

    Returns:
        The path of the picture; None if drawing fails.
    """
    from algorithm.tools.reports.charts import draw_picture
    from algorithm.tools.reports.run_data import make_metrics
    from algorithm.tools.reports.run_figures import draw_returns

    try:
        metrics = make_metrics(read_table(folder / TABLE_FILE), {}) if metrics is None else metrics
        if not metrics.columns:
            raise ValueError(f"{TABLE_FILE} has no row that can be read")
        title = f"{folder.name}: return" + ("" if goal is None else f" (goal {goal:,.6g})")
        draw_picture([replace(draw_returns(metrics, goal), title=title)]).write_png(folder / CURVE_FILE)
    except Exception as error:  # a run does not fail because of its picture
        log(f"no {CURVE_FILE}: {type(error).__name__}: {error}")
        return None
    return folder / CURVE_FILE
