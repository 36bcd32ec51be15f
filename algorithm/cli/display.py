"""How a run is shown while it trains: a live picture in a terminal, lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from math import isnan

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from algorithm.specs import AGENT, of_role
from algorithm.training.formatting import format_number
from algorithm.training.progress import Progress, Standing

Show = Callable[[Progress], None]
Facts = list[Text]
Draw = Callable[[int], "ProgressBar | StackedBar | Text"]  # a bar of a width

BAR = 32  # columns, at most
TEXT = 40  # columns that text needs alongside a bar
GAP = 2  # spaces between columns, and between facts
ECHO = 3  # columns that stay empty on the right: the ^C that a terminal echoes behind the picture breaks no line
COLORS = {
    "environment": "blue",
    "acting": "cyan",
    "learning": "green",
    "evaluation": "magenta",
    "saving": "yellow",
    "reporting": "red",
    "starting": "white",
}


def lines(say: Callable[[str], None]) -> Show:
    """Return a function that passes one line for each row of metrics to `say`."""

    def show(progress: Progress) -> None:
        if progress.row:
            say(line(progress))

    return show


@contextmanager
def live(console: Console, say: Callable[[str], None]) -> Iterator[Show]:
    """Show a display that changes in place, below other output; if `console` is no terminal, pass lines to `say`."""
    if not console.is_terminal or console.is_dumb_terminal:
        yield lines(say)
        return
    with Live(console=console, auto_refresh=False) as screen:

        def show(progress: Progress) -> None:
            if not progress.row:  # rows may come faster than anybody looks
                screen.update(Picture(progress), refresh=True)

        yield show


def line(progress: Progress) -> str:
    """Return the state of a run in one line."""
    facts = _steps(progress)
    for role, standing in progress.roles.items():
        facts += [Text(f"return{of_role(role)} ") + _return(standing), *_length(standing)]
        facts += [*_measures(standing.measures), *_losses(standing)]
    return "  ".join(fact.plain for fact in [*facts, *_speed(progress), *_shares(progress), *_left(progress)])


class Picture:
    """A live display of a run: rows of a label, a bar and facts, as wide as the console."""

    def __init__(self, progress: Progress):
        self.progress = progress

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = list(self._rows())
        label = min(options.max_width // 4, max(cell_len(name) for name, _, _ in rows))
        room = options.max_width - label - GAP - ECHO
        # A console that is too narrow for bar and text gets no bar.
        bar = min(BAR, (room - TEXT) // 2) if room >= TEXT * 3 // 2 else 0
        table = Table.grid(padding=(0, GAP, 0, 0))
        table.add_column(style="bold", width=label, no_wrap=True, overflow="ellipsis")
        if bar:
            table.add_column(width=bar)
        table.add_column()
        for name, draw, facts in rows:
            text = _flow(facts, room - (bar + GAP if bar else 0))
            table.add_row(Text(name), *([draw(bar)] if bar else []), text)
        yield table

    def _rows(self) -> Iterator[tuple[str, Draw, Facts]]:
        """Yield label, bar for a width, and facts of each row."""
        progress = self.progress
        done, goal = progress.done, progress.goal
        yield "steps", lambda width: _bar(done, width), [*_steps(progress), *_left(progress)]
        for role, standing in progress.roles.items():
            way = None if goal is None else _approach(standing, goal)
            first, second, what = ("return", "policy", "") if role == AGENT else (role, "", "return ")
            mean = Text("no episode yet", "dim") if isnan(standing.mean) else Text(what) + _return(standing, goal)
            facts = [mean, *_goal(goal), *_length(standing)]
            yield first, lambda width, way=way: _bar(way, width), facts
            if learned := [*_measures(standing.measures), *_losses(standing)]:
                yield second, lambda width: Text(), learned
        yield "speed", lambda width: Text(), _speed(progress)
        so_far = f"{_duration(progress.counters.seconds)} {'in all' if progress.ended else 'so far'}"
        yield "time", lambda width: StackedBar(progress.pace.shares, width), [Text(so_far), *_shares(progress)]


class StackedBar:
    """A bar with a stretch for each part, in its color."""

    def __init__(self, shares: Mapping[str, float], width: int):
        self.cells = _rounded(shares, width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        sign = "-" if options.legacy_windows or options.ascii_only else "━"
        yield Text.assemble(*((sign * self.cells[part], COLORS[part]) for part in COLORS if part in self.cells))


def _flow(facts: Iterable[Text], width: int) -> Text:
    """Return facts in lines of at most `width`; a fact that fits into one line is not broken."""
    flowing, used = Text(overflow="fold"), 0
    for fact in facts:
        if used and used + GAP + fact.cell_len > width:
            flowing.append("\n")
            used = 0
        elif used:
            flowing.append(" " * GAP)
            used += GAP
        flowing.append_text(fact)
        used += fact.cell_len
    return flowing


def _bar(share: float | None, width: int) -> ProgressBar | Text:
    """Return a bar; nothing if its end is not known."""
    if share is None:
        return Text()
    done = min(1.0, max(0.0, share))
    return ProgressBar(1.0, done, width, complete_style="green", finished_style="bold green")


def _rounded(shares: Mapping[str, float], total: int) -> dict[str, int]:
    """Return integers in proportion to `shares` whose sum is `total` (largest remainders); nothing for no share."""
    whole = sum(shares.values())
    if whole <= 0:
        return {}
    exact = {part: total * share / whole for part, share in shares.items()}
    cells = {part: int(value) for part, value in exact.items()}
    left = total - sum(cells.values())
    for part in sorted(exact, key=lambda part: cells[part] - exact[part])[:left]:
        cells[part] += 1
    return cells


def _approach(standing: Standing, goal: float) -> float:
    """Return the share of the way from the first mean return to the goal."""
    if standing.first is None or standing.mean >= goal:
        return float(standing.mean >= goal)
    return (standing.mean - standing.first) / max(goal - standing.first, 1e-9)


def _steps(progress: Progress) -> Facts:
    of = f" of {progress.max_step:,}" if progress.max_step else ""
    return [Text(f"{progress.counters.env_steps:,}{of} steps")]


def _return(standing: Standing, goal: float | None = None) -> Text:
    reached = goal is not None and standing.mean >= goal
    best = "" if standing.best is None else f" (best {format_number(standing.best)})"
    return Text.assemble((format_number(standing.mean), "bold green" if reached else "cyan"), best)


def _goal(goal: float | None) -> Facts:
    return [] if goal is None else [Text(f"goal {goal:,.10g}")]


def _length(standing: Standing) -> Facts:
    return [] if isnan(standing.length) else [Text(f"length {format_number(standing.length)}")]


def _measures(measures: Mapping[str, float]) -> Facts:
    return [Text(f"{name} {format_number(value)}") for name, value in measures.items()]


def _losses(standing: Standing) -> Facts:
    return _measures({f"{name} loss": value for name, value in standing.losses.items()})


def _speed(progress: Progress) -> Facts:
    pace, episodes = progress.pace, progress.counters.episodes
    counted = f"{episodes:,} episode{'' if episodes == 1 else 's'}"
    rates = {"steps": pace.env_steps, "updates": pace.updates}
    return [
        *(Text(f"{rate:,.0f} {of}/s" if rate >= 10 else f"{rate:.2g} {of}/s") for of, rate in rates.items()),
        Text(counted),
    ]


def _shares(progress: Progress) -> Facts:
    """Return the percentage of each part's time; together 100%."""
    percent = _rounded(progress.pace.shares, 100)
    return [Text(f"{part} {percent[part]}%", COLORS[part]) for part in COLORS if percent.get(part)]


def _left(progress: Progress) -> Facts:
    return [] if progress.seconds_left is None else [Text(f"{_duration(progress.seconds_left)} left")]


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
