"""Reading metrics.csv takes most of the time of a long run's page: it is read once."""

from __future__ import annotations

import pytest

from algorithm import records_io
from algorithm.tools.reports.comparison import compare
from algorithm.tools.reports.report_files import write_files
from tests.tools.reports import compared_folders, run_folders


@pytest.fixture
def lines(monkeypatch) -> list[str]:
    """The lines of tables that have been split into cells."""
    found = []
    split = records_io._split_cells
    monkeypatch.setattr(records_io, "_split_cells", lambda line: found.append(line) or split(line))
    return found


def test_a_report_reads_metrics_once(tmp_path, lines):
    folder = run_folders.write_run(tmp_path / "a")
    lines.clear()
    write_files(folder, pytest.fail)
    assert lines == (folder / "metrics.csv").read_text(encoding="utf-8").splitlines()


def test_a_comparison_reads_the_metrics_of_a_run_once(tmp_path, lines):
    folder = compared_folders.write_run(tmp_path / "a", {0: 0.0, 100: 1.0})
    compare([str(tmp_path)], None, lambda line: None)
    assert lines == (folder / "metrics.csv").read_text(encoding="utf-8").splitlines()
