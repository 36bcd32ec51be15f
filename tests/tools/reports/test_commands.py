"""The command report, and the setting that writes a report when a run ends."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.task_folder import TRUNCATION, write_task
from tests.tools.reports.run_folders import read_links, read_text

RUN = Path("runs/mine/task/a")


@pytest.fixture(autouse=True)
def task():
    """Create the folder mine/task: episodes of ten steps with return 10 in three lanes."""
    write_task(TRUNCATION)


def read_report(folder=RUN) -> str:
    return (folder / "report.html").read_text(encoding="utf-8")


def test_a_report_at_the_end_of_a_run_and_on_command(command):
    shown = command("mine/task -n a --set report_config.report=true").out
    assert f"report: {RUN.resolve() / 'report.html'}" in shown
    record, text = json.loads((RUN / "result.json").read_text()), read_text(read_report())
    assert f"episodes {record['episodes']} updates {record['updates']}" in text
    assert "report_config.report true false" in text and "3 agents" in text
    assert "trained parameters" in text and (RUN / "README.md").is_file()
    (RUN / "report.html").unlink()
    command("mine/task -n a --resume --max_step 180 --set report_config.report=false")
    assert not (RUN / "report.html").exists()
    (RUN / "result.json").unlink()
    assert command.json("report mine/task") == {
        "status": 0,
        "run": RUN.as_posix(),
        "report": (RUN / "report.html").as_posix(),
        "model_card": (RUN / "README.md").as_posix(),
    }
    text = read_text(read_report())
    assert "Unfinished" in text and "90 base_config.max_step 90 180" in text
    assert "result.json" not in read_links(read_report())


@pytest.mark.usefixtures("prepared_workers")
def test_a_population_reports_on_its_members_with_their_complete_lineage(command):
    words = ["report_config.report=true", "population_config.interval=30", "population_config.processes=1"]
    words.append("population_config.random_params={acer_config.learning_rate: {truncated: [0.0001, 0.01]}}")
    command(["mine/task", "--population", "2", "-n", "a", "--max_step", "60", "--set", *words])
    lines = Path("runs/mine/task/a/lineage.jsonl").read_text().splitlines()
    rows = [(row["member"], row["interval"], row["env_steps"]) for row in map(json.loads, lines)]
    assert [row[:2] for row in rows] == [(1, 1), (2, 1), (1, 2), (2, 2)]
    for member in (1, 2):
        folder = Path(f"runs/mine/task/a-{member}")
        lineage = read_text(read_report(folder)).partition("of the population a")[2]
        shown = re.findall(r" (\d) (?:itself|member \d) (\d+) ", lineage)
        assert [tuple(map(int, row)) for row in shown] == [row[1:] for row in rows if row[0] == member]
        assert (folder / "README.md").is_file()


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_failed_run_has_a_report_with_the_reason(command):
    config = TRUNCATION.replace("n_envs: 3", "n_envs: 3, max_nonfinite_updates: 1")
    Path("envs/mine/task/config.yaml").write_text(config)
    words = "report_config.report=true acer_config.learning_rate=1e30"
    command(f"mine/task -n a --max_step 3000 --set {words}", 4)
    assert "Diverged The run ended with exit status 4 after" in read_text(read_report())
