"""The picture of a network: its parts from the observations at the top to the outputs at the bottom, as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

LINE_HEIGHT, PADDING = 16.0, 10.0  # pixels, in a box
COLUMN_GAP, ROW_GAP = 20.0, 34.0  # pixels between boxes
CHARACTER_WIDTH = 6.4  # pixels of a character, on average
MIN_WIDTH, MAX_WIDTH = 120.0, 240.0  # pixels of a box
MAX_LAYERS = 8  # layers that a box lists


@dataclass(frozen=True, kw_only=True)
class Box:
    """A part of a network with its place: the left end, the top and the size in pixels, and its lines of text."""

    left: float
    top: float
    width: float
    height: float
    lines: Sequence[tuple[str, str]]  # class of the style, text
    is_observation: bool

    @property
    def center(self) -> float:
        """The middle between left and right."""
        return self.left + self.width / 2


def draw_network(nodes: Sequence[Mapping[str, Any]]) -> str:
    """Return the picture of a network as SVG.

    Args:
        nodes: the parts, as in networks.json; the inputs of a part precede it.
    """
    boxes = _place(nodes)
    width = max((box.left + box.width for box in boxes), default=0.0) + 1
    height = max((box.top + box.height for box in boxes), default=0.0) + 1
    edges = [_draw_edge(boxes[index], box) for node, box in zip(nodes, boxes, strict=True) for index in node["inputs"]]
    return "\n".join(
        [
            f'<svg class="network" role="img" viewBox="0 0 {width:g} {height:g}" style="max-width: {width:g}px; '
            f'min-width: {min(width, 420):g}px">',
            *edges,
            *(line for box in boxes for line in _draw_box(box)),
            "</svg>",
        ]
    )


def _place(nodes: Sequence[Mapping[str, Any]]) -> list[Box]:
    """Return the box of each node: rows from the first to the last part, each row centered."""
    texts = [list(_list_lines(node)) for node in nodes]
    widths = [
        min(MAX_WIDTH, max(MIN_WIDTH, 2 * PADDING + CHARACTER_WIDTH * max(len(text) for _, text in lines)))
        for lines in texts
    ]
    heights = [2 * PADDING + LINE_HEIGHT * len(lines) - 3 for lines in texts]
    rows = _find_rows(nodes)
    full_width = max((_measure_row(row, widths) for row in rows), default=0.0)
    boxes: dict[int, Box] = {}
    top = 1.0
    for row in rows:
        left = 1 + (full_width - _measure_row(row, widths)) / 2
        for index in row:
            boxes[index] = Box(
                left=left,
                top=top,
                width=widths[index],
                height=heights[index],
                lines=texts[index],
                is_observation=_is_observation(nodes[index]),
            )
            left += widths[index] + COLUMN_GAP
        top += max(heights[index] for index in row) + ROW_GAP
    return [boxes[index] for index in range(len(nodes))]


def _find_rows(nodes: Sequence[Mapping[str, Any]]) -> list[list[int]]:
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


def _measure_row(row: Sequence[int], widths: Sequence[float]) -> float:
    return sum(widths[index] for index in row) + COLUMN_GAP * (len(row) - 1)


def _is_observation(node: Mapping[str, Any]) -> bool:
    return not node["inputs"] and not node["layers"]


def _list_lines(node: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the lines of text in a box."""
    name = node["name"].replace("_", " ")
    yield "name", f"{name} \N{MULTIPLICATION SIGN} {node['count']}" if node["count"] > 1 else name
    if _is_observation(node):
        yield "detail", f"{node['output']} {node['type']}"
        return
    yield "detail", node["type"]
    layers = node["layers"]
    for layer in layers[:MAX_LAYERS]:
        yield "layer", f"{layer['type']} {layer['shape']}"
    if len(layers) > MAX_LAYERS:
        yield "layer", f"{len(layers) - MAX_LAYERS} further layers"
    if node["output"] is not None:
        yield "detail", f"output {node['output']}"
    if node["parameters"]:
        yield "detail", f"{node['parameters']:,} parameters"


def _draw_box(box: Box) -> Iterator[str]:
    kind = "observation" if box.is_observation else "part"
    place = f'x="{box.left:g}" y="{box.top:g}" width="{box.width:g}" height="{box.height:g}"'
    yield f'<rect class="{kind}" {place} rx="5"/>'
    for number, (style, text) in enumerate(box.lines):
        y = box.top + PADDING + LINE_HEIGHT * number + 9
        limit = int((box.width - 2 * PADDING) / CHARACTER_WIDTH) + 1
        shown = text if len(text) <= limit else f"{text[: limit - 1]}\N{HORIZONTAL ELLIPSIS}"
        yield f'<text class="{style}" x="{box.center:g}" y="{y:g}">{escape(shown)}</text>'


def _draw_edge(source: Box, target: Box) -> str:
    begin, end = source.top + source.height, target.top
    middle = end - ROW_GAP / 2
    return (
        f'<path class="edge" d="M {source.center:g} {begin:g} C {source.center:g} {middle:g}, '
        f'{target.center:g} {end - ROW_GAP / 2:g}, {target.center:g} {end:g}"/>'
    )
