"""The files that report on a run, in its folder: report.html and the model card README.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from algorithm.atomic_io import replace_text
from algorithm.errors import summarize_error
from algorithm.tools.reports.curve import draw_curve
from algorithm.tools.reports.model_card import MARK, make_model_card
from algorithm.tools.reports.page import check_packages
from algorithm.tools.reports.run_data import read_run
from algorithm.tools.reports.run_report import make_report

REPORT_FILE, CARD_FILE = "report.html", "README.md"
Log = Callable[[str], None]


def write_files(folder: Path, log: Log) -> tuple[Path, Path | None]:
    """Write the report and the model card of a run, with its curve, which the model card shows.

    Args:
        folder: the run folder.
        log: receives a line if the folder has a README.md that is no model card, which is kept.

    Returns:
        The path of the report, and that of the model card; None if another README.md is kept.

    Raises:
        UserError: the extra `report` is missing.
    """
    check_packages()
    run = read_run(folder)
    draw_curve(folder, run.goal, log, run.metrics.columns)
    report, card = folder / REPORT_FILE, folder / CARD_FILE
    replace_text(report, make_report(run))
    if card.exists() and MARK not in card.read_text(encoding="utf-8", errors="replace"):
        log(f"{card} is kept, since Samara did not write it: the run has no model card")
        return report, None
    replace_text(card, make_model_card(run))
    return report, card


class ReportWriter:
    """A writer of the files at the end of a run, if `report_config.report` is true.

    An error while they are written is a line, and does not change the result of the run.

    Args:
        folder: the run folder.
        log: receives lines for the user.

    Raises:
        UserError: the extra `report` is missing.
    """

    def __init__(self, folder: Path, log: Log):
        self.folder, self.log = folder, log
        check_packages()

    def write(self) -> None:
        """Write the files."""
        try:
            report, _ = write_files(self.folder, self.log)
        except Exception as error:  # no error of a report may change the result of a run
            self.log(f"no report: {summarize_error(error)}")
        else:
            self.log(f"report: {report}")
