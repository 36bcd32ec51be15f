"""The picture of a network: its parts from the observations at the top to the outputs at the bottom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from algorithm.tools.reports.figure import Figure, Path, Text, make_box

LINE_HEIGHT, PADDING = 16.0, 10.0  # pixels, in a box
COLUMN_GAP, ROW_GAP = 20.0, 34.0  # pixels between boxes
CHARACTER_WIDTH = 6.4  # pixels of a character, on average
MIN_WIDTH, MAX_WIDTH = 120.0, 240.0  # pixels of a box
MAX_LAYERS = 8  # layers that a box lists
Node = Mapping[str, Any]


def draw_network(nodes: Sequence[Node]) -> Figure:
    """Return the picture of a network.

    Args:
        nodes: the parts, as in networks.json; the inputs of a part precede it.
    """
    texts = [list(_list_lines(node)) for node in nodes]
    longest = [max(len(text) for text, _ in lines) for lines in texts]
    widths = [min(MAX_WIDTH, max(MIN_WIDTH, 2 * PADDING + CHARACTER_WIDTH * length)) for length in longest]
    heights = [2 * PADDING + LINE_HEIGHT * len(lines) - 3 for lines in texts]
    rows = _find_rows(nodes)
    row_widths = [sum(widths[index] + COLUMN_GAP for index in row) - COLUMN_GAP for row in rows]
    full_width, top = max(row_widths, default=0.0), 1.0
    places: dict[int, tuple[float, float]] = {}  # left and top of each box
    for row, row_width in zip(rows, row_widths, strict=True):
        left = 1 + (full_width - row_width) / 2
        for index in row:
            places[index] = (left, top)
            left += widths[index] + COLUMN_GAP
        top += max(heights[index] for index in row) + ROW_GAP
    figure = Figure(size=(full_width + 2, max(top - ROW_GAP, 0.0) + 1))
    for index, node in enumerate(nodes):
        for source in node["inputs"]:
            ends = [(places[each][0] + widths[each] / 2, places[each][1]) for each in (source, index)]
            points = np.array(ends) + [(0, heights[source]), (0, 0)]
            figure.shapes.append(Path(points=points, color="level", width=1.2))
    for index, node in enumerate(nodes):
        _draw_box(figure, places[index], (widths[index], heights[index]), texts[index], _is_observation(node))
    return figure


def _find_rows(nodes: Sequence[Node]) -> list[list[int]]:
    """Return the indices of the nodes in each row: one row after the last of their inputs.

    A part without inputs that is no observation, such as a temperature, is in the last row.
    """
    ranks: list[int] = []
    for node in nodes:
        ranks.append(1 + max((ranks[index] for index in node["inputs"]), default=-1))
    last = max(ranks, default=0)
    ranks = [
        last if not node["inputs"] and not _is_observation(node) else rank
        for node, rank in zip(nodes, ranks, strict=True)
    ]
    rows = [[index for index, rank in enumerate(ranks) if rank == number] for number in range(last + 1)]
    return [row for row in rows if row]


def _is_observation(node: Node) -> bool:
    return not node["inputs"] and not node["layers"]


def _list_lines(node: Node) -> Iterator[tuple[str, str]]:
    """Yield the lines of text in a box, each with its color."""
    name = node["name"].replace("_", " ")
    yield f"{name} \N{MULTIPLICATION SIGN} {node['count']}" if node["count"] > 1 else name, "ink"
    if _is_observation(node):
        yield f"{node['output']} {node['type']}", "muted"
        return
    yield node["type"], "muted"
    layers = node["layers"]
    for layer in layers[:MAX_LAYERS]:
        yield f"{layer['type']} {layer['shape']}", "ink"
    if len(layers) > MAX_LAYERS:
        yield f"{len(layers) - MAX_LAYERS} further layers", "ink"
    if node["output"] is not None:
        yield f"output {node['output']}", "muted"
    if node["parameters"]:
        yield f"{node['parameters']:,} parameters", "muted"


def _draw_box(
    figure: Figure,
    place: tuple[float, float],
    size: tuple[float, float],
    lines: Sequence[tuple[str, str]],
    is_observation: bool,
) -> None:
    """Draw a box with its lines of text, the first of which is its name."""
    outline, limit = make_box(*place, *size), int((size[0] - 2 * PADDING) / CHARACTER_WIDTH) + 1
    frame: Any = {"color": "level", "dash": (4, 3)} if is_observation else {"color": "grid"}
    fill = Path(points=outline, color="page" if is_observation else "panel", width=0)
    figure.shapes += [fill, Path(points=outline, **frame)]
    for number, (text, color) in enumerate(lines):
        shown = text if len(text) <= limit else f"{text[: limit - 1]}\N{HORIZONTAL ELLIPSIS}"
        x, y = place[0] + size[0] / 2, place[1] + PADDING + LINE_HEIGHT * number + 9
        figure.shapes.append(Text(x=x, y=y, text=shown, color=color, anchor="middle", is_bold=number == 0))
