"""The display of a run while it trains: a panel in a terminal that changes in place, lines of text elsewhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil, inf
from time import perf_counter, process_time

from rich.console import Console, ConsoleRenderable, RenderableType
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType

from algorithm.cli.panel import ProgressPanel
from algorithm.cli.process_memory import read_memory
from algorithm.cli.progress_texts import format_line
from algorithm.cli.trend import Trend
from algorithm.runs.callbacks import Callback
from algorithm.training.progress import Progress

MAX_SHARE = 0.0075  # of the CPU time of this process, for drawing
MAX_SECONDS = 10.0  # between two drawings, for a process that mostly waits for its environments


class LineDisplay(Callback):
    """A display that passes one line for each row of metrics to `log`."""

    def __init__(self, log: Callable[[str], None]):
        self.log = log

    def on_progress(self, progress: Progress) -> None:
        if progress.wrote_row:
            self.log(format_line(progress))


class LiveDisplay(Callback):
    """A display that changes in place, below the other output of a terminal.

    It is drawn again when it would take at most `MAX_SHARE` of the CPU time since the last drawing, at the latest after
    `MAX_SECONDS`, and at the end.
    """

    def __init__(self, screen: PanelScreen, title: str):
        self.screen, self.title = screen, title
        self.trends: defaultdict[str, Trend] = defaultdict(Trend)
        self._next_cpu_time = self._next_time = -inf

    def on_progress(self, progress: Progress) -> None:
        if progress.wrote_row:  # rows may be written more often than a display can be read
            return
        for role, role_progress in progress.roles.items():
            self.trends[role].add(role_progress.mean)
        begin = process_time()
        if progress.has_ended or begin >= self._next_cpu_time or perf_counter() >= self._next_time:
            trends = {role: self.trends[role].points for role in progress.roles}
            self.screen.update(ProgressPanel(progress, trends, self.title, read_memory()), refresh=True)
            end = process_time()
            self._next_cpu_time, self._next_time = end + (end - begin) / MAX_SHARE, perf_counter() + MAX_SECONDS


class PanelScreen(Live):
    """A live panel of rich that survives a change of the terminal's width.

    When a terminal becomes narrower, it wraps the lines of the panel. These rows are erased with the panel, so that no
    part of it remains.
    """

    def __init__(self, console: Console):
        super().__init__(console=console, auto_refresh=False)
        self._drawn: RenderableType | None = None  # on the screen

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Return what is written for new output: the panel is erased, and drawn again below the output."""
        wrapped_rows = self._count_wrapped_rows()
        self._drawn = self.get_renderable()
        codes = ((ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)) * wrapped_rows
        return [*([Control(*codes)] if codes else []), *super().process_renderables(renderables)]

    def _count_wrapped_rows(self) -> int:
        """Return the number of rows that the panel has in addition to its lines, since the terminal is narrower now."""
        if not isinstance(self._drawn, ProgressPanel):
            return 0
        return self._drawn.height * (ceil(self._drawn.width / self.console.width) - 1)


@contextmanager
def live_display(console: Console, log: Callable[[str], None], title: str = "") -> Iterator[Callback]:
    """Yield a live display, or a display that passes lines to `log` if `console` is not a terminal."""
    if not console.is_terminal or console.is_dumb_terminal:
        yield LineDisplay(log)
        return
    with PanelScreen(console) as screen:
        yield LiveDisplay(screen, title)
