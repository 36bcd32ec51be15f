"""The display of a run while it trains: a live picture in a terminal, lines of text elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from math import isnan

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from algorithm.runs.callbacks import Callback
from algorithm.specs import DEFAULT_ROLE, role_suffix
from algorithm.training.metrics import format_number
from algorithm.training.progress import Progress, RoleProgress

Texts = list[Text]
DrawBar = Callable[[int], "ProgressBar | StackedBar | Text"]  # a bar of a width

BAR_WIDTH = 32  # columns, at most
MIN_TEXT_WIDTH = 40  # columns that text needs alongside a bar
GAP = 2  # spaces between columns, and between texts
RIGHT_MARGIN = 3  # empty columns on the right, so that the ^C that a terminal echoes after the picture breaks no line
COLORS = {
    "environment": "blue",
    "acting": "cyan",
    "learning": "green",
    "evaluation": "magenta",
    "saving": "yellow",
    "reporting": "red",
    "starting": "white",
}


class LineDisplay(Callback):
    """A display that passes one line for each row of metrics to `log`."""

    def __init__(self, log: Callable[[str], None]):
        self.log = log

    def on_progress(self, progress: Progress) -> None:
        if progress.wrote_row:
            self.log(format_line(progress))


class LiveDisplay(Callback):
    """A display that changes in place, below the other output of a terminal."""

    def __init__(self, screen: Live):
        self.screen = screen

    def on_progress(self, progress: Progress) -> None:
        if not progress.wrote_row:  # rows may be written more often than a display can be read
            self.screen.update(ProgressView(progress), refresh=True)


@contextmanager
def live_display(console: Console, log: Callable[[str], None]) -> Iterator[Callback]:
    """Yield a live display, or a display that passes lines to `log` if `console` is not a terminal."""
    if not console.is_terminal or console.is_dumb_terminal:
        yield LineDisplay(log)
        return
    with Live(console=console, auto_refresh=False) as screen:
        yield LiveDisplay(screen)


def format_line(progress: Progress) -> str:
    """Return the state of a run in one line."""
    texts = _format_steps(progress)
    for role, role_progress in progress.roles.items():
        texts += [Text(f"return{role_suffix(role)} ") + _format_return(role_progress), *_format_length(role_progress)]
        texts += [*_format_metrics(role_progress.policy_metrics), *_format_losses(role_progress)]
    return "  ".join(
        text.plain
        for text in [*texts, *_format_speed(progress), *_format_shares(progress), *_format_time_left(progress)]
    )


class ProgressView:
    """A live display of a run, as wide as the console: each row has a label, a bar and texts."""

    def __init__(self, progress: Progress):
        self.progress = progress

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = list(self._rows())
        label = min(options.max_width // 4, max(cell_len(name) for name, _, _ in rows))
        available = options.max_width - label - GAP - RIGHT_MARGIN
        # A console that is too narrow for bar and text gets no bar.
        bar = min(BAR_WIDTH, (available - MIN_TEXT_WIDTH) // 2) if available >= MIN_TEXT_WIDTH * 3 // 2 else 0
        table = Table.grid(padding=(0, GAP, 0, 0))
        table.add_column(style="bold", width=label, no_wrap=True, overflow="ellipsis")
        if bar:
            table.add_column(width=bar)
        table.add_column()
        for name, draw, texts in rows:
            text = _wrap_texts(texts, available - (bar + GAP if bar else 0))
            table.add_row(Text(name), *([draw(bar)] if bar else []), text)
        yield table

    def _rows(self) -> Iterator[tuple[str, DrawBar, Texts]]:
        """Yield the label, the function that draws the bar, and the texts of each row."""
        progress = self.progress
        fraction_done, goal = progress.fraction_done, progress.goal
        yield (
            "steps",
            lambda width: _make_bar(fraction_done, width),
            [*_format_steps(progress), *_format_time_left(progress)],
        )
        for role, role_progress in progress.roles.items():
            goal_fraction = None if goal is None else _compute_goal_fraction(role_progress, goal)
            first, second, prefix = ("return", "policy", "") if role == DEFAULT_ROLE else (role, "", "return ")
            mean = (
                Text("no episode yet", "dim")
                if isnan(role_progress.mean)
                else Text(prefix) + _format_return(role_progress, goal)
            )
            texts = [mean, *_format_goal(goal), *_format_length(role_progress)]
            yield first, partial(_make_bar, goal_fraction), texts
            if metrics := [*_format_metrics(role_progress.policy_metrics), *_format_losses(role_progress)]:
                yield second, lambda width: Text(), metrics
        yield "speed", lambda width: Text(), _format_speed(progress)
        so_far = f"{_format_duration(progress.counters.seconds)} {'in all' if progress.has_ended else 'so far'}"
        yield (
            "time",
            lambda width: StackedBar(progress.throughput.shares, width),
            [Text(so_far), *_format_shares(progress)],
        )


class StackedBar:
    """A bar with a section for each part of the run, in the color of the part."""

    def __init__(self, shares: Mapping[str, float], width: int):
        self.cells = _round_to_total(shares, width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        sign = "-" if options.legacy_windows or options.ascii_only else "━"
        yield Text.assemble(*((sign * self.cells[part], COLORS[part]) for part in COLORS if part in self.cells))


def _wrap_texts(texts: Iterable[Text], width: int) -> Text:
    """Return texts in lines of at most `width`; a text that fits into one line is not broken."""
    wrapped, used = Text(overflow="fold"), 0
    for text in texts:
        if used and used + GAP + text.cell_len > width:
            wrapped.append("\n")
            used = 0
        elif used:
            wrapped.append(" " * GAP)
            used += GAP
        wrapped.append_text(text)
        used += text.cell_len
    return wrapped


def _make_bar(share: float | None, width: int) -> ProgressBar | Text:
    """Return a bar that is filled up to `share`; an empty text if `share` is None."""
    if share is None:
        return Text()
    done = min(1.0, max(0.0, share))
    return ProgressBar(1.0, done, width, complete_style="green", finished_style="bold green")


def _round_to_total(shares: Mapping[str, float], total: int) -> dict[str, int]:
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


def _compute_goal_fraction(role_progress: RoleProgress, goal: float) -> float:
    """Return the fraction of the distance from the first mean return to the goal that is covered."""
    if role_progress.first is None or role_progress.mean >= goal:
        return float(role_progress.mean >= goal)
    return (role_progress.mean - role_progress.first) / max(goal - role_progress.first, 1e-9)


def _format_steps(progress: Progress) -> Texts:
    of = f" of {progress.max_step:,}" if progress.max_step else ""
    return [Text(f"{progress.counters.env_steps:,}{of} steps")]


def _format_return(role_progress: RoleProgress, goal: float | None = None) -> Text:
    reached = goal is not None and role_progress.mean >= goal
    best = "" if role_progress.best is None else f" (best {format_number(role_progress.best)})"
    return Text.assemble((format_number(role_progress.mean), "bold green" if reached else "cyan"), best)


def _format_goal(goal: float | None) -> Texts:
    return [] if goal is None else [Text(f"goal {goal:,.10g}")]


def _format_length(role_progress: RoleProgress) -> Texts:
    return [] if isnan(role_progress.length) else [Text(f"length {format_number(role_progress.length)}")]


def _format_metrics(metrics: Mapping[str, float]) -> Texts:
    return [Text(f"{name} {format_number(value)}") for name, value in metrics.items()]


def _format_losses(role_progress: RoleProgress) -> Texts:
    return _format_metrics({f"{name} loss": value for name, value in role_progress.losses.items()})


def _format_speed(progress: Progress) -> Texts:
    throughput, episodes = progress.throughput, progress.counters.episodes
    counted = f"{episodes:,} episode{'' if episodes == 1 else 's'}"
    rates = {"steps": throughput.env_steps, "updates": throughput.updates}
    return [
        *(Text(f"{rate:,.0f} {unit}/s" if rate >= 10 else f"{rate:.2g} {unit}/s") for unit, rate in rates.items()),
        Text(counted),
    ]


def _format_shares(progress: Progress) -> Texts:
    """Return the percentage of the time of each part; the sum is 100%."""
    percent = _round_to_total(progress.throughput.shares, 100)
    return [Text(f"{part} {percent[part]}%", COLORS[part]) for part in COLORS if percent.get(part)]


def _format_time_left(progress: Progress) -> Texts:
    return [] if progress.seconds_left is None else [Text(f"{_format_duration(progress.seconds_left)} left")]


def _format_duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
