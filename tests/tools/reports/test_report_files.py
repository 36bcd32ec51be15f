"""The files of a report: both are written, a README of the user is kept, and errors do not change a run."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from algorithm.tools.reports import report_files
from algorithm.tools.reports.report_files import MARK, write_files, write_report
from tests.tools.reports.run_folders import RESULT, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = write_run(tmp_path_factory.mktemp("runs") / "gym/cartpole/first")
    write_files(folder, pytest.fail)
    return folder


def test_the_model_card_has_metadata_and_the_figures_of_the_result(run):
    card = (run / "README.md").read_text(encoding="utf-8")
    _, head, text = card.split("---\n", 2)
    metadata = yaml.safe_load(head)
    assert metadata["library_name"] == "samara"
    assert metadata["tags"] == ["reinforcement-learning", "ACER", "CartPole-v1"]
    (model,) = metadata["model-index"]
    (result,) = model["results"]
    assert result["dataset"]["type"] == "CartPole-v1"
    assert result["metrics"][0]["value"] == "479.70 +/- 20.50"
    assert text.startswith(MARK)
    for line in [
        "# ACER in gym/cartpole",
        "Goal reached. The mean return reached the goal of 475 after 6,000 env steps; evaluation episodes confirm it. "
        "The 95% interval of the evaluation, 428.8 to 530.6, does not decide whether the weights reach the goal; "
        "more than 3 evaluation episodes (goal.evaluation_episodes) make it narrower.",
        "| evaluation return | 479.7 (95% interval 428.8 to 530.6, 3 episodes) |",
        "| acer_config.gamma | 0.98 | 0.99 |",
        "| observation | obs | 4 | float32 |  |",
        "| processor | Fast &lt;CPU> |",
        f"| commit | {RESULT['commit']} |",
        "- play it: `python main.py gym/cartpole -n first --run`",
    ]:
        assert line in text.splitlines()
    for name in ("curve.png", "videos/6000-best.gif"):
        assert f"![{name}]({name})" in text and (run / name).is_file()
    assert "]([" not in text and "sac_config" not in text


def test_tables_of_the_model_card_have_equal_rows(run):
    lines = (run / "README.md").read_text(encoding="utf-8").splitlines()
    tables = [[]]
    for line in lines:
        if line.startswith("|"):
            tables[-1].append(line.count("|"))
        elif tables[-1]:
            tables.append([])
    tables = [table for table in tables if table]
    assert len(tables) == 4 and all(len(set(table)) == 1 for table in tables)


def test_a_readme_of_the_user_is_kept_and_a_model_card_is_replaced(tmp_path):
    lines = []
    (tmp_path / "README.md").write_text("mine")
    report, card = write_files(tmp_path, lines.append)
    assert report.is_file() and card is None and (tmp_path / "README.md").read_text() == "mine"
    assert "README.md is kept" in lines[-1]
    (tmp_path / "README.md").write_text(f"earlier card\n{MARK}")
    _, card = write_files(tmp_path, lines.append)
    assert card and "earlier card" not in card.read_text()


def test_an_error_while_writing_is_a_line(monkeypatch, tmp_path):
    def fail(folder, log):
        raise OSError("no space left")

    lines = []
    monkeypatch.setattr(report_files, "write_files", fail)
    write_report(tmp_path, lines.append)
    assert lines == ["no report: OSError: no space left"]
