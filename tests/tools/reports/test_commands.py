"""The command report, and the setting that writes a report when a run ends."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from algorithm.cli import main
from tests.task_folder import write_task
from tests.tools.reports.run_folders import PageReader

CONFIG = """
default:
  base_config: {env_type: PROBE, env_name: truncation, max_step: 90, log_every: 30, save_every: 30, n_envs: 3}
  acer_config: {rollout_length: 5, sequence_length: 5}
"""
RUN = Path("runs/mine/task/a")


@pytest.fixture(autouse=True)
def task():
    """Create the folder mine/task: episodes of ten steps with return 10 in three lanes."""
    write_task(CONFIG)


def test_a_report_at_the_end_of_a_run_and_on_command(capsys):
    assert main.main("mine/task -n a --set report_config.report=true".split()) == 0
    shown = capsys.readouterr().out
    assert f"report: {RUN.resolve() / 'report.html'}" in shown
    record = json.loads((RUN / "result.json").read_text())
    page = PageReader((RUN / "report.html").read_text(encoding="utf-8"))
    assert f"episodes {record['episodes']} updates {record['updates']}" in page.text
    assert "report_config.report true false" in page.text and "3 agents" in page.text
    assert "trained parameters" in page.text and (RUN / "README.md").is_file()

    (RUN / "report.html").unlink()
    assert main.main("mine/task -n a --resume --max_step 180 --set report_config.report=false".split()) == 0
    assert not (RUN / "report.html").exists()
    (RUN / "result.json").unlink()
    capsys.readouterr()
    assert main.main("report mine/task --json".split()) == 0
    assert json.loads(capsys.readouterr().out) == {
        "status": 0,
        "run": RUN.as_posix(),
        "report": (RUN / "report.html").as_posix(),
        "model_card": (RUN / "README.md").as_posix(),
    }
    page = PageReader((RUN / "report.html").read_text(encoding="utf-8"))
    assert "Unfinished" in page.text and "90 base_config.max_step 90 180" in page.text
    assert len([link for link in page.links if link == "result.json"]) == 0


@pytest.mark.usefixtures("prepared_workers")
def test_a_population_reports_on_its_members_with_their_complete_lineage():
    words = ["report_config.report=true", "population_config.interval=30", "population_config.processes=1"]
    words.append("population_config.random_params={acer_config.learning_rate: {truncated: [0.0001, 0.01]}}")
    assert main.main(["mine/task", "--population", "2", "-n", "a", "--max_step", "60", "--set", *words]) == 0
    lines = Path("runs/mine/task/a/lineage.jsonl").read_text().splitlines()
    rows = [(row["member"], row["interval"], row["env_steps"]) for row in map(json.loads, lines)]
    assert [row[:2] for row in rows] == [(1, 1), (2, 1), (1, 2), (2, 2)]
    for member in (1, 2):
        folder = Path(f"runs/mine/task/a-{member}")
        lineage = PageReader((folder / "report.html").read_text(encoding="utf-8")).text.partition(
            "of the population a"
        )[2]
        shown = re.findall(r" (\d) (?:itself|member \d) (\d+) ", lineage)
        assert [tuple(map(int, row)) for row in shown] == [row[1:] for row in rows if row[0] == member]
        assert (folder / "README.md").is_file()


def test_a_run_that_does_not_exist_is_one_line(capsys):
    assert main.main("report mine/task -n b".split()) == 2
    assert "there is no run 'b'" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_failed_run_has_a_report_with_the_reason(capsys):
    (Path("envs/mine/task/config.yaml")).write_text(CONFIG.replace("n_envs: 3", "n_envs: 3, max_nonfinite_updates: 1"))
    words = ["report_config.report=true", "acer_config.learning_rate=1e30"]
    status = main.main(["mine/task", "-n", "a", "--max_step", "3000", "--set", *words])
    assert status == 4, capsys.readouterr().err
    text = PageReader((RUN / "report.html").read_text(encoding="utf-8")).text
    assert "Diverged The run ended with exit status 4 after" in text
