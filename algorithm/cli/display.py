"""The display of a run while it trains: a panel in a terminal that changes in place, lines of text elsewhere."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import pairwise
from math import ceil, inf, isfinite, isnan
from pathlib import Path
from statistics import fmean
from time import perf_counter, process_time
from typing import NamedTuple

from rich import box
from rich.cells import cell_len
from rich.columns import Columns
from rich.console import Console, ConsoleDimensions, ConsoleOptions, ConsoleRenderable, RenderableType, RenderResult
from rich.control import Control
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.segment import ControlType, Segment
from rich.table import Table
from rich.text import Text

from algorithm.program import DEFAULT_ROLE, role_suffix
from algorithm.runs.callbacks import Callback
from algorithm.runs.playing import ShowPlaying
from algorithm.training.metrics import format_number
from algorithm.training.progress import Progress, RoleProgress

MAX_SHARE = 0.0075  # of the CPU time of this process, for drawing
PLAYING_SECONDS = 0.25  # between two drawings of the progress of episodes that are played
MAX_SECONDS = 10.0  # between two drawings, for a process that mostly waits for its environments
MAX_POINTS = 256  # of the course of a number
STATM = Path("/proc/self/statm")  # the memory of this process, on Linux
# Parts of the time: their color, and their sign in a bar without colors.
PARTS = {
    "environment": ("blue", "e"),
    "acting": ("cyan", "a"),
    "learning": ("green", "l"),
    "evaluation": ("magenta", "v"),
    "saving": ("yellow", "s"),
    "reporting": ("red", "r"),
    "starting": ("white", "t"),
}
LEVELS, ASCII_LEVELS = "▁▂▃▄▅▆▇█", "_.-=+*#@"
BAR_WIDTH = 32  # columns, at most
MIN_TEXT_WIDTH = 40  # columns that text needs alongside a bar
MIN_WIDTH_WITH_SIDES = 57  # columns of a panel with a border on its sides
RIGHT_MARGIN = 3  # empty columns on the right, so that the ^C that a terminal echoes after the picture breaks no line
GAP = 2  # spaces between texts

Texts = list[Text]


class Row(NamedTuple):
    """A row of the panel: its label, its texts, the function that draws its bar, and whether the bar is a sparkline."""

    label: str
    texts: Texts
    draw: Callable[[int], RenderableType] | None = None
    is_sparkline: bool = False


def format_line(progress: Progress) -> str:
    """Return the state of a run in one line."""
    texts = [format_steps(progress)]
    for role, role_progress in progress.roles.items():
        texts += format_return(f"return{role_suffix(role)} ", role_progress)
        texts += [*format_metrics(role_progress.policy_metrics), *format_metrics(role_progress.losses, " loss")]
    texts += [*format_speed(progress), *format_shares(progress), *format_time_left(progress)]
    return "  ".join(text.plain for text in texts)


def format_steps(progress: Progress) -> Text:
    """Return the env steps, and those of the whole run."""
    of = f" of {progress.max_step:,}" if progress.max_step else ""
    return Text(f"{progress.counters.env_steps:,}{of} steps")


def format_return(label: str, role_progress: RoleProgress, goal: float | None = None) -> Texts:
    """Return the mean return, in another color once the goal is reached, the best one, and the length of episodes."""
    reached = goal is not None and role_progress.mean >= goal
    best = "" if role_progress.best is None else f" (best {format_number(role_progress.best)})"
    mean = (format_number(role_progress.mean), "bold green" if reached else "cyan")
    length = {} if isnan(role_progress.length) else {"length": role_progress.length}
    return [Text.assemble(label, mean, best), *format_metrics(length)]


def format_metrics(metrics: Mapping[str, float], kind: str = "") -> Texts:
    """Return names, each with `kind` after it, and values."""
    return [Text(f"{name}{kind} {format_number(value)}") for name, value in metrics.items()]


def format_speed(progress: Progress) -> Texts:
    """Return env steps and updates per second, and the number of episodes."""
    rates = {"steps": progress.throughput.env_steps, "updates": progress.throughput.updates}
    return [
        *(Text(f"{rate:,.0f} {unit}/s" if rate >= 10 else f"{rate:.2g} {unit}/s") for unit, rate in rates.items()),
        Text(format_count(progress.counters.episodes, "episode")),
    ]


def format_shares(progress: Progress, with_signs: bool = False) -> Texts:
    """Return the percentage of the time of each part, perhaps after its sign in the bar; the sum is 100%."""
    percent = round_to_total(progress.throughput.shares, 100)
    return [
        Text(f"{f'{sign}: ' if with_signs else ''}{part} {percent[part]}%", color)
        for part, (color, sign) in PARTS.items()
        if percent.get(part)
    ]


def format_time_left(progress: Progress) -> Texts:
    """Return the time that is left, if it is known."""
    return [] if progress.seconds_left is None else [Text(f"{format_duration(progress.seconds_left)} left")]


def format_evaluations(progress: Progress) -> Texts:
    """Return the mean returns of the last and the best evaluation, with their env steps; empty before the first one."""
    last, best = progress.evaluation, progress.best_evaluation
    if last is None or best is None:
        return []
    texts = [Text.assemble((format_number(last.mean), "cyan"), f" at {last.env_steps:,} steps")]
    texts.append(Text("the best" if best == last else f"best {format_number(best.mean)} at {best.env_steps:,} steps"))
    return [*texts, Text("mean over roles")] if len(progress.roles) > 1 else texts


def format_machine(progress: Progress, memory: int | None) -> Texts:
    """Return the device of learning, the memory of the process in bytes, and the number of faults."""
    texts = [Text(f"device {progress.device}")] if progress.device else []
    if memory is not None:
        texts.append(Text(f"memory {memory / 1e9:.1f} GB" if memory >= 1e9 else f"memory {memory / 1e6:.0f} MB"))
    faults = Text(format_count(progress.faults, "fault"), "bold red") if progress.faults else Text("no faults")
    return [*texts, faults]


def format_duration(seconds: float) -> str:
    """Return a time as hours:minutes:seconds."""
    return str(timedelta(seconds=round(seconds)))


def format_count(count: int, unit: str) -> str:
    """Return a number with its unit, in the plural for all numbers but 1."""
    return f"{count:,} {unit}{'' if count == 1 else 's'}"


def draw_bar(share: float | None, width: int) -> RenderableType:
    """Return a bar that is filled up to `share`; an empty text if `share` is None."""
    if share is None:
        return Text()
    return ProgressBar(1.0, share, width, complete_style="green", finished_style="bold green")


def draw_shares(shares: Mapping[str, float], sign: str | None, width: int) -> Text:
    """Return a bar with a section for each part of the time, in the color of the part.

    Args:
        shares: the share of each part.
        sign: the character of all sections; with None, each part has its own.
        width: characters of the whole bar.
    """
    cells = round_to_total(shares, width)
    return Text.assemble(
        *(((sign or own) * cells[part], color) for part, (color, own) in PARTS.items() if part in cells)
    )


def draw_sparkline(values: Sequence[float], levels: str, width: int) -> Text:
    """Return the course of a number: a column for each mean of successive values, as high as its rank in the range."""
    limits = [len(values) * number // width for number in range(width + 1)]
    means = [fmean(values[start:end]) for start, end in pairwise(limits) if start < end]
    low, high = min(means, default=0.0), max(means, default=0.0)
    parts = ((value - low) / ((high - low) or 1.0) for value in means)
    return Text("".join(levels[round(part * (len(levels) - 1))] for part in parts), "cyan", no_wrap=True)


def round_to_total(shares: Mapping[str, float], total: int) -> dict[str, int]:
    """Return integers in proportion to `shares` with the sum `total` (largest remainders); empty if all are 0."""
    share_sum = sum(shares.values())
    if share_sum <= 0:
        return {}
    quotas = {part: total * share / share_sum for part, share in shares.items()}
    cells = {part: int(value) for part, value in quotas.items()}
    left = total - sum(cells.values())
    for part in sorted(quotas, key=lambda part: cells[part] - quotas[part])[:left]:
        cells[part] += 1
    return cells


def make_table(rows: Sequence[Row], width: int) -> Table:
    """Return rows as a table of `width` columns; if it is too narrow for bars and texts, it has sparklines only."""
    label = min(width // 4, max(cell_len(row.label) for row in rows))
    available = width - label - GAP
    bar = min(BAR_WIDTH, (available - MIN_TEXT_WIDTH) // 2) if available >= MIN_TEXT_WIDTH * 3 // 2 else 0
    text_width = available - (bar + GAP if bar else 0)
    table = Table.grid(padding=(0, GAP, 0, 0), pad_edge=False)
    table.add_column(style="bold", width=label, no_wrap=True, overflow="ellipsis")
    if bar:
        table.add_column(width=bar)
    table.add_column(width=text_width)
    for row in rows:
        text = Columns(row.texts, (0, GAP))
        if bar:
            table.add_row(Text(row.label), row.draw(bar) if row.draw else Text(), text)
        elif row.is_sparkline and row.draw:
            table.add_row(Text(row.label), row.draw(text_width))
            table.add_row(Text(), text)
        else:
            table.add_row(Text(row.label), text)
    return table


def compute_goal_fraction(role_progress: RoleProgress, goal: float) -> float:
    """Return the fraction of the distance from the first mean return to the goal that is covered."""
    if role_progress.first is None or role_progress.mean >= goal:
        return float(role_progress.mean >= goal)
    return (role_progress.mean - role_progress.first) / max(goal - role_progress.first, 1e-9)


@dataclass
class ProgressPanel:
    """A panel as wide as the console.

    Attributes:
        progress: the progress of the run.
        trends: the course of the mean return of each role or team.
        title: the title.
        memory: the bytes of memory that this process uses; None if they are not known.
        height: the lines of its last drawing; 0 before the first.
    """

    progress: Progress
    trends: Mapping[str, Sequence[float]]
    title: str = ""
    memory: int | None = None
    height: int = 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(1, options.max_width - RIGHT_MARGIN)
        has_sides = width >= MIN_WIDTH_WITH_SIDES
        is_ascii = options.legacy_windows or options.ascii_only
        sign = None if console.no_color or console.color_system is None else "-" if is_ascii else "━"
        rows = list(self._make_rows(ASCII_LEVELS if is_ascii else LEVELS, sign))
        panel = Panel(
            make_table(rows, width - (4 if has_sides else 2)),
            box=box.ROUNDED if has_sides else box.HORIZONTALS,
            padding=(0, 1 if has_sides else 0),
            title=Text(self.title, overflow="ellipsis", no_wrap=True) if self.title else None,
            title_align="left",
            width=width,
            border_style="dim",
        )
        lines = console.render_lines(panel, options.update(width=width), pad=False)
        self.height = len(lines)
        for line in lines:
            yield from line
            yield Segment.line()

    def _make_rows(self, levels: str, sign: str | None) -> Iterator[Row]:
        """Yield the rows, given the characters of sparklines, and of the bar of the time as `draw_shares` needs it."""
        progress = self.progress
        steps = [format_steps(progress), *format_time_left(progress)]
        yield Row("steps", steps, partial(draw_bar, progress.fraction_done))
        for role, role_progress in progress.roles.items():
            yield from self._make_role_rows(role, role_progress, levels)
        if evaluations := format_evaluations(progress):
            yield Row("evaluation", evaluations)
        lanes = sum(role_progress.lanes for role_progress in progress.roles.values())
        agents = [Text(format_count(lanes, "agent"))] if lanes else []
        yield Row("speed", [*format_speed(progress), *agents])
        spent = Text(f"{format_duration(progress.counters.seconds)} {'in all' if progress.has_ended else 'so far'}")
        shares = [spent, *format_shares(progress, with_signs=sign is None)]
        yield Row("time", shares, partial(draw_shares, progress.throughput.shares, sign))
        yield Row("machine", format_machine(progress, self.memory))

    def _make_role_rows(self, role: str, role_progress: RoleProgress, levels: str) -> Iterator[Row]:
        goal, is_only = self.progress.goal, role == DEFAULT_ROLE
        label = "return" if is_only else role
        if isnan(role_progress.mean):
            yield Row(label, [Text("no episode yet", "dim")])
        else:
            draw = partial(draw_sparkline, self.trends.get(role, ()), levels)
            texts = format_return("" if is_only else "return ", role_progress, goal)
            yield Row(label, texts, draw, is_sparkline=True)
        if goal is not None:
            share = compute_goal_fraction(role_progress, goal)
            texts = [Text(f"goal {goal:,.10g}"), Text(f"{100 * min(1.0, max(0.0, share)):.0f}%")]
            yield Row("goal" if is_only else "", texts, partial(draw_bar, share))
        if role_progress.policy_metrics:
            yield Row("policy" if is_only else "", format_metrics(role_progress.policy_metrics))
        if role_progress.losses:
            yield Row("losses" if is_only else "", format_metrics(role_progress.losses, " loss"))


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
        self.trends: defaultdict[str, list[float]] = defaultdict(list)  # the course of the mean return of each role
        self._calls, self._stride = 0, 1
        self._next_cpu_time = self._next_time = -inf

    def on_progress(self, progress: Progress) -> None:
        if progress.wrote_row:  # rows may be written more often than a display can be read
            return
        self._record_returns(progress)
        begin = process_time()
        is_due = begin >= self._next_cpu_time or perf_counter() >= self._next_time
        if progress.has_ended or is_due or self.screen.is_resized:
            self.screen.update(ProgressPanel(progress, self.trends, self.title, read_memory()), refresh=True)
            end = process_time()
            self._next_cpu_time, self._next_time = end + (end - begin) / MAX_SHARE, perf_counter() + MAX_SECONDS

    def _record_returns(self, progress: Progress) -> None:
        """Record the mean returns of every n-th call and of the last one; n doubles when a role has `MAX_POINTS`."""
        self._calls += 1
        if self._calls % self._stride and not progress.has_ended:
            return
        for role, role_progress in progress.roles.items():
            if isfinite(role_progress.mean):
                self.trends[role].append(role_progress.mean)
        if any(len(trend) >= MAX_POINTS for trend in self.trends.values()):
            self._stride *= 2
            for trend in self.trends.values():
                del trend[::2]


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
        width = self._drawn_size.width - RIGHT_MARGIN
        return lines * (ceil(width / self.console.width) - 1)


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
