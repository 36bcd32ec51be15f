"""The picture of a network: a box for each part, in rows after their inputs, joined by edges."""

from __future__ import annotations

import re

from algorithm.tools.reports.network_figure import draw_network


def node(name: str, inputs=(), layers=(), **fields):
    layers = [{"type": "Linear", "shape": shape, "parameters": 1} for shape in layers]
    fields = {"type": "Part", "output": "8", "parameters": len(layers), "count": 1, **fields}
    return {"name": name, "inputs": list(inputs), "layers": layers, **fields}


def read_boxes(svg: str) -> list[tuple[float, ...]]:
    """Return left, top, width and height of each box."""
    pattern = r'<rect class="\w+" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"'
    return [tuple(map(float, found)) for found in re.findall(pattern, svg)]


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
    boxes = read_boxes(draw_network(NODES))
    assert len(boxes) == len(NODES)
    for index, one in enumerate(NODES):
        for source in one["inputs"]:
            assert boxes[index][1] >= boxes[source][1] + boxes[source][3]
    for index, (left, top, width, height) in enumerate(boxes):
        for other_left, other_top, other_width, other_height in boxes[index + 1 :]:
            apart = left + width <= other_left or other_left + other_width <= left
            assert apart or top + height <= other_top or other_top + other_height <= top
    assert boxes[6][1] == boxes[5][1]  # a part without inputs is in the last row


def test_edges_join_a_part_with_its_inputs():
    svg = draw_network(NODES)
    boxes = read_boxes(svg)
    edges = re.findall(r'<path class="edge" d="M ([\d.]+) ([\d.]+) C .*? ([\d.]+) ([\d.]+)"', svg)
    expected = [(source, index) for index, one in enumerate(NODES) for source in one["inputs"]]
    assert len(edges) == len(expected)
    for edge, (source, target) in zip(edges, expected, strict=True):
        x, y, end_x, end_y = map(float, edge)
        (left, top, width, height), (end_left, end_top, end_width, _) = boxes[source], boxes[target]
        assert (x, y) == (left + width / 2, top + height)
        assert (end_x, end_y) == (end_left + end_width / 2, end_top)


def test_a_box_has_shapes_and_parameters_and_shortens_long_lists():
    svg = draw_network(NODES)
    for text in ("4 float32", "Linear 72 → 64", "4,672 parameters", "policy × 2", "4 further layers", "output 8"):
        assert f">{text}</text>" in svg


def test_names_are_escaped_and_long_ones_shortened():
    svg = draw_network([node("<b>&" + "x" * 200)])
    assert "&lt;b&gt;&amp;xxx" in svg and "<b>" not in svg and "…" in svg and "x" * 60 not in svg
    assert "<svg" in draw_network([])
