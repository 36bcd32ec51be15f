"""The panel of the live display: the progress of a run as rows of a label, a bar and texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isnan

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.panel import Panel
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from algorithm.cli.bars import Sparkline, StackedBar, is_colorless, make_bar
from algorithm.cli.progress_texts import (
    GAP,
    Texts,
    format_evaluations,
    format_goal,
    format_lanes,
    format_length,
    format_losses,
    format_machine,
    format_metrics,
    format_return,
    format_shares,
    format_speed,
    format_steps,
    format_time,
    format_time_left,
    wrap_texts,
)
from algorithm.program import DEFAULT_ROLE
from algorithm.training.progress import Progress, RoleProgress

DrawBar = Callable[[int], RenderableType]  # a bar of a width

BAR_WIDTH = 32  # columns, at most
MIN_TEXT_WIDTH = 40  # columns that text needs alongside a bar
MIN_WIDTH_WITH_SIDES = 57  # columns of a panel with a border on its sides
RIGHT_MARGIN = 3  # empty columns on the right, so that the ^C that a terminal echoes after the picture breaks no line


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row: its label, the function that draws its bar, whether the bar is a sparkline, and its texts."""

    label: str
    draw: DrawBar | None = None
    texts: Texts
    is_sparkline: bool = False


class ProgressPanel:
    """A panel as wide as the console.

    Args:
        progress: the progress of the run.
        trends: the course of the mean return of each role or team.
        title: the title.
        memory: the bytes of memory that this process uses; None if they are not known.

    Attributes:
        width: the columns of its last drawing; 0 before the first.
        height: the lines of its last drawing.
    """

    def __init__(
        self, progress: Progress, trends: Mapping[str, Sequence[float]], title: str = "", memory: int | None = None
    ):
        self.progress, self.trends, self.title, self.memory = progress, trends, title, memory
        self.width = self.height = 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(1, options.max_width - RIGHT_MARGIN)
        has_sides = width >= MIN_WIDTH_WITH_SIDES
        panel = Panel(
            self._make_table(width - (4 if has_sides else 2), has_signs=is_colorless(console)),
            box=box.ROUNDED if has_sides else box.HORIZONTALS,
            padding=(0, 1 if has_sides else 0),
            title=Text(self.title, overflow="ellipsis", no_wrap=True) if self.title else None,
            title_align="left",
            width=width,
            border_style="dim",
        )
        lines = console.render_lines(panel, options.update(width=width), pad=False)
        self.width, self.height = width, len(lines)
        for line in lines:
            yield from line
            yield Segment.line()

    def _make_table(self, width: int, has_signs: bool) -> Table:
        """Return the rows as a table of `width` columns; with `has_signs`, texts have the signs of the time bar."""
        rows = list(self._make_rows(has_signs=False))
        label = min(width // 4, max(cell_len(row.label) for row in rows))
        available = width - label - GAP
        # A console that is too narrow for bar and text gets no bar.
        bar = min(BAR_WIDTH, (available - MIN_TEXT_WIDTH) // 2) if available >= MIN_TEXT_WIDTH * 3 // 2 else 0
        text_width = available - (bar + GAP if bar else 0)
        table = Table.grid(padding=(0, GAP, 0, 0), pad_edge=False)
        table.add_column(style="bold", width=label, no_wrap=True, overflow="ellipsis")
        if bar:
            table.add_column(width=bar)
        table.add_column(width=text_width)
        for row in self._make_rows(has_signs) if bar else rows:
            text = wrap_texts(row.texts, text_width)
            if bar:
                table.add_row(Text(row.label), row.draw(bar) if row.draw else Text(), text)
            elif row.is_sparkline and row.draw:
                table.add_row(Text(row.label), row.draw(text_width))
                table.add_row(Text(), text)
            else:
                table.add_row(Text(row.label), text)
        return table

    def _make_rows(self, has_signs: bool) -> Iterator[Row]:
        progress = self.progress
        yield Row(
            label="steps",
            draw=partial(make_bar, progress.fraction_done),
            texts=[*format_steps(progress), *format_time_left(progress)],
        )
        for role, role_progress in progress.roles.items():
            yield from self._make_role_rows(role, role_progress)
        if evaluations := format_evaluations(progress):
            yield Row(label="evaluation", texts=evaluations)
        yield Row(label="speed", texts=[*format_speed(progress), *format_lanes(progress)])
        yield Row(
            label="time",
            draw=partial(StackedBar, progress.throughput.shares),
            texts=[*format_time(progress), *format_shares(progress, with_signs=has_signs)],
        )
        yield Row(label="machine", texts=format_machine(progress, self.memory))

    def _make_role_rows(self, role: str, role_progress: RoleProgress) -> Iterator[Row]:
        goal, is_only = self.progress.goal, role == DEFAULT_ROLE
        if isnan(role_progress.mean):
            yield Row(label="return" if is_only else role, texts=[Text("no episode yet", "dim")])
        else:
            mean = Text("" if is_only else "return ") + format_return(role_progress, goal)
            sparkline = partial(Sparkline, self.trends.get(role, ()))
            texts = [mean, *format_length(role_progress)]
            yield Row(label="return" if is_only else role, draw=sparkline, texts=texts, is_sparkline=True)
        if goal is not None:
            fraction = compute_goal_fraction(role_progress, goal)
            label, draw = "goal" if is_only else "", partial(make_bar, fraction)
            yield Row(label=label, draw=draw, texts=format_goal(goal, fraction))
        if policy := format_metrics(role_progress.policy_metrics):
            yield Row(label="policy" if is_only else "", texts=policy)
        if losses := format_losses(role_progress):
            yield Row(label="losses" if is_only else "", texts=losses)


def compute_goal_fraction(role_progress: RoleProgress, goal: float) -> float:
    """Return the fraction of the distance from the first mean return to the goal that is covered."""
    if role_progress.first is None or role_progress.mean >= goal:
        return float(role_progress.mean >= goal)
    return (role_progress.mean - role_progress.first) / max(goal - role_progress.first, 1e-9)
