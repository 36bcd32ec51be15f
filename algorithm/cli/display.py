"""The display of a run while it trains: a panel in a terminal that changes in place, lines of text elsewhere."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil, inf, isfinite
from pathlib import Path
from statistics import fmean
from time import perf_counter, process_time

from rich.console import Console, ConsoleDimensions, ConsoleRenderable, RenderableType
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType
from rich.text import Text

from algorithm.cli.panel import ProgressPanel, format_line
from algorithm.runs.callbacks import Callback
from algorithm.runs.playing import ShowPlaying
from algorithm.training.progress import Progress

MAX_SHARE = 0.0075  # of the CPU time of this process, for drawing
PLAYING_SECONDS = 0.25  # between two drawings of the progress of episodes that are played
MAX_POINTS = 256  # of the course of a number; even
STATM = Path("/proc/self/statm")  # the memory of this process, on Linux
MAX_SECONDS = 10.0  # between two drawings, for a process that mostly waits for its environments


class Trend:
    """The course of a number in bounded memory: means of successive values, merged in pairs at `MAX_POINTS`.

    Each point is the mean of equally many values, except for the last one, which is not complete.
    """

    def __init__(self) -> None:
        self._points: list[float] = []
        self._incomplete: list[float] = []
        self._values_per_point = 1

    def add(self, value: float) -> None:
        """Add a value; one that is not finite is ignored."""
        if not isfinite(value):
            return
        self._incomplete.append(value)
        if len(self._incomplete) < self._values_per_point:
            return
        self._points.append(fmean(self._incomplete))
        self._incomplete.clear()
        if len(self._points) == MAX_POINTS:
            self._points = [fmean(self._points[start : start + 2]) for start in range(0, MAX_POINTS, 2)]
            self._values_per_point *= 2

    @property
    def points(self) -> list[float]:
        """Return the points, with the incomplete one."""
        return [*self._points, fmean(self._incomplete)] if self._incomplete else list(self._points)


def read_memory() -> int | None:
    """Return the bytes of memory that this process uses, elsewhere than on Linux at most so far; None on Windows."""
    try:
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        pass
    try:
        import resource
    except ImportError:  # Windows
        return None
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024


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
    `MAX_SECONDS`, at the end, and when the size of the terminal has changed.
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
        is_due = begin >= self._next_cpu_time or perf_counter() >= self._next_time
        if progress.has_ended or is_due or self.screen.is_resized:
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
        self._drawn_size: ConsoleDimensions | None = None  # of the terminal at that time

    @property
    def is_resized(self) -> bool:
        """Return whether the size of the terminal has changed since the panel was drawn."""
        return self._drawn_size not in (None, self.console.size)

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Return what is written for new output: the panel is erased, and drawn again below the output."""
        wrapped_rows = self._count_wrapped_rows()
        self._drawn, self._drawn_size = self.get_renderable(), self.console.size
        codes = ((ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)) * wrapped_rows
        return [*([Control(*codes)] if codes else []), *super().process_renderables(renderables)]

    def _count_wrapped_rows(self) -> int:
        """Return the number of rows that the panel has in addition to its lines, since the terminal is narrower now.

        Of a panel that is higher than the terminal, only as many lines are drawn as the terminal has.
        """
        if not isinstance(self._drawn, ProgressPanel) or self._drawn_size is None:
            return 0
        lines = min(self._drawn.height, self._drawn_size.height)
        return lines * (ceil(self._drawn.width / self.console.width) - 1)


@contextmanager
def live_display(console: Console, log: Callable[[str], None], title: str = "") -> Iterator[Callback]:
    """Yield a live display, or a display that passes lines to `log` if `console` is not a terminal."""
    if not console.is_terminal or console.is_dumb_terminal:
        yield LineDisplay(log)
        return
    with PanelScreen(console) as screen:
        yield LiveDisplay(screen, title)


@contextmanager
def display_playing(console: Console, log: Callable[[str], None]) -> Iterator[ShowPlaying]:
    """Yield a function that displays the progress of episodes that are played.

    In a terminal it is a line that changes in place and disappears at the end; elsewhere there is a line for each
    activity when it begins.
    """
    if not console.is_terminal or console.is_dumb_terminal:
        logged: set[str] = set()

        def show_begin(activity: str, done: int, planned: int, tick: int) -> None:
            if activity not in logged:
                logged.add(activity)
                log(f"{activity}: {planned} episodes")

        yield show_begin
        return
    next_time = -inf
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def show(activity: str, done: int, planned: int, tick: int) -> None:
            nonlocal next_time
            if done == planned or perf_counter() >= next_time:
                next_time = perf_counter() + PLAYING_SECONDS
                text = f"{activity}: {done} of {planned} episodes, step {tick:,}"
                live.update(Text(text, "dim", no_wrap=True, overflow="ellipsis"), refresh=True)

        yield show
