"""The report of a run: report.html in its folder, one file with all that the folder contains about the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from algorithm.atomic_io import replace_text
from algorithm.reports.charts import Line, draw_lines
from algorithm.reports.page import check_packages, mark_safe, render
from algorithm.runs.curve import TRAINING_COLUMN, read_columns
from algorithm.runs.results import describe_state, read_record
from algorithm.training.metrics import STEPS_COLUMN, TABLE_FILE, format_number

REPORT_FILE = "report.html"


@dataclass(frozen=True, kw_only=True)
class LegendEntry:
    """An entry of a legend, with the last value of its line.

    Attributes:
        color: number of its color.
        label: its name.
        column: the column of metrics.csv that it shows; empty if it shows no column.
        exact: its last value; None without one.
    """

    color: int
    label: str
    column: str = ""
    exact: float | None = None

    @property
    def value(self) -> str | None:
        """Its last value as text; None without one."""
        return None if self.exact is None else format_number(self.exact)


@dataclass(frozen=True, kw_only=True)
class ChartFigure:
    """A chart with its title, its legend and a note below it."""

    title: str
    svg: Any
    legend: tuple[LegendEntry, ...] = ()
    note: str = ""


def write_report(folder: Path, log: Callable[[str], None]) -> Path:
    """Write report.html into a run folder and return its path.

    Raises:
        UserError: the extra `report` is missing.
    """
    check_packages()
    columns = read_columns(folder / TABLE_FILE)
    record = read_record(folder, log)
    known = np.isfinite(columns[TRAINING_COLUMN])
    x, y = columns[STEPS_COLUMN][known], columns[TRAINING_COLUMN][known]
    figure = ChartFigure(
        title="Return",
        svg=mark_safe(draw_lines("return", [Line(label="training", color=0, x=x, y=y)])),
        legend=(LegendEntry(color=0, label="training", column=TRAINING_COLUMN, exact=float(y[-1])),),
    )
    run = {"name": folder.name, "outcome": describe_state(record)}
    replace_text(folder / REPORT_FILE, render("run.html", run=run, figures=[figure]))
    return folder / REPORT_FILE
