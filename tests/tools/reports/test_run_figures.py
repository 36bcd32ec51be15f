"""The figures of a run: its learning curve, and what is drawn of its metrics."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from PIL import Image

from algorithm.tools.reports.figure import Figure
from algorithm.tools.reports.run_figures import CURVE_FILE, draw_curve
from algorithm.training.metrics import MetricsWriter


@pytest.fixture
def drawn(monkeypatch):
    """The pictures that are drawn, as the texts in each."""
    found = []
    write = Figure.write_png

    def record(figure, path):
        write(figure, path)
        found.append([text.text for text in ElementTree.fromstring(figure.to_svg()).iter("text")])

    monkeypatch.setattr(Figure, "write_png", record)
    return found


def test_training_evaluation_and_goal_are_drawn(tmp_path, drawn):
    metrics = MetricsWriter(tmp_path)
    metrics.write(10, {"rollout/return": 1.0, "time/seconds": 2})
    metrics.write(15, {"eval/return": 3.0, "eval/return_low": 2.5, "eval/return_high": 3.5})
    metrics.write(20, {"rollout/return": 4.0})
    assert draw_curve(tmp_path, 5.0, pytest.fail) == tmp_path / CURVE_FILE
    ((title, *texts),) = drawn
    assert title == f"{tmp_path.name}: return (goal 5)" and texts[:2] == ["training", "evaluation"]
    with Image.open(tmp_path / CURVE_FILE) as image:
        assert image.format == "PNG" and image.width > 900 and len(image.getcolors(1 << 20)) > 50


def test_each_role_has_its_own_lines(tmp_path, drawn):
    metrics = MetricsWriter(tmp_path)
    metrics.write(10, {"rollout/return/left": 1.0, "rollout/return/right": 2.0})
    metrics.write(15, {"eval/return/right": 3.0, "eval/return_low/right": 2.5, "eval/return_high/right": 3.5})
    draw_curve(tmp_path, None, pytest.fail)
    assert drawn[0][:4] == [f"{tmp_path.name}: return", "training, left", "training, right", "evaluation, right"]


def test_a_run_without_a_return_has_an_empty_curve(tmp_path):
    MetricsWriter(tmp_path).write(10, {"time/seconds": 1.0})
    assert draw_curve(tmp_path, None, pytest.fail) == tmp_path / CURVE_FILE


@pytest.mark.parametrize("table", [None, "", "env_steps,rollout/return\n1,many\n"])
def test_a_picture_that_cannot_be_drawn_is_one_logged_line(tmp_path, table):
    if table is not None:
        (tmp_path / "metrics.csv").write_text(table)
    logged = []
    assert draw_curve(tmp_path, 5.0, logged.append) is None
    assert len(logged) == 1 and logged[0].startswith("no curve.png: ")
