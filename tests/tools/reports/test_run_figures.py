"""The figures of a run: its learning curve, what is drawn of its metrics, and the picture of its networks."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from algorithm.tools.reports.figure import Figure, Text
from algorithm.tools.reports.run_figures import CURVE_FILE, draw_curve, draw_network
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


def node(name: str, inputs=(), layers=(), **fields):
    layers = [{"type": "Linear", "shape": shape, "parameters": 1} for shape in layers]
    fields = {"type": "Part", "output": "8", "parameters": len(layers), "count": 1, **fields}
    return {"name": name, "inputs": list(inputs), "layers": layers, **fields}


def list_boxes(figure) -> list[tuple[float, ...]]:
    """Return left, top, right and bottom of each box."""
    filled = [shape.points for shape in figure.shapes if not isinstance(shape, Text) and not shape.width]
    return [(*points.min(0), *points.max(0)) for points in filled]


NODES = [
    node("obs", output="4", type="float32"),
    node("picture", output="3×8×8", type="uint8"),
    node("encoder", [0], ["4 → 64"]),
    node("encoder", [1], [f"{k} → {k}" for k in range(12)]),
    node("body", [2, 3], ["72 → 64"], parameters=4672),
    node("policy", [4], ["64 → 2"], count=2),
    node("temperature", layers=["1"], output=None),
]


def test_parts_are_below_their_inputs_and_do_not_overlap():
    figure = draw_network(NODES)
    boxes = list_boxes(figure)
    assert len(boxes) == len(NODES)
    for index, one in enumerate(NODES):
        assert all(boxes[index][1] >= boxes[source][3] for source in one["inputs"])
    for index, (left, top, right, bottom) in enumerate(boxes):
        assert 0 <= left and 0 <= top and right <= figure.size[0] and bottom <= figure.size[1]
        for other in boxes[index + 1 :]:
            assert right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
    assert boxes[6][1] == boxes[5][1]  # a part without inputs is in the last row


def test_edges_join_a_part_with_its_inputs():
    figure = draw_network(NODES)
    boxes = list_boxes(figure)
    edges = [shape.points for shape in figure.shapes if not isinstance(shape, Text) and shape.width == 1.2]
    expected = [(source, index) for index, one in enumerate(NODES) for source in one["inputs"]]
    for edge, (source, target) in zip(edges, expected, strict=True):
        (left, _, right, bottom), (end_left, end_top, end_right, _) = boxes[source], boxes[target]
        assert edge == pytest.approx(np.array([[(left + right) / 2, bottom], [(end_left + end_right) / 2, end_top]]))


def test_a_box_has_shapes_and_parameters_and_shortens_long_lists():
    svg = draw_network(NODES).to_svg()
    for text in ("4 float32", "Linear 72 → 64", "4,672 parameters", "policy × 2", "4 further layers", "output 8"):
        assert f">{text}</text>" in svg


def test_names_are_escaped_and_long_ones_shortened():
    svg = draw_network([node("<b>&" + "x" * 200)]).to_svg()
    assert "&lt;b&gt;&amp;xxx" in svg and "<b>" not in svg and "…" in svg and "x" * 60 not in svg
    assert "<svg" in draw_network([]).to_svg()
