"""How a run is shown while it trains: a live picture in a terminal, lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from math import isnan

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from algorithm.loop.progress import Progress, Standing
from algorithm.specs import of_role

Show = Callable[[Progress], None]
BAR = 32  # columns
SPLIT = ("environment", "acting", "learning")


def lines(say: Callable[[str], None]) -> Show:
    """Says one line for each row of metrics."""

    def show(progress: Progress) -> None:
        if progress.row:
            say(line(progress))

    return show


@contextmanager
def live(console: Console, say: Callable[[str], None]) -> Iterator[Show]:
    """A picture that changes in place, below whatever is printed; lines for `say` where `console` is no terminal."""
    if not console.is_terminal or console.is_dumb_terminal:
        yield lines(say)
        return
    with Live(console=console, auto_refresh=False) as screen:

        def show(progress: Progress) -> None:
            if not progress.row:  # rows may come faster than anybody looks
                screen.update(picture(progress), refresh=True)

        yield show


def line(progress: Progress) -> str:
    """How a run stands, in one line."""
    counters = progress.counters
    facts = [
        _steps(progress),
        *(f"return{of_role(role)} {_returns(standing)}" for role, standing in progress.roles.items()),
        *(_measures(standing) for standing in progress.roles.values() if standing.measures),
        f"{counters.episodes:,} episodes",
        f"{progress.pace.env_steps:,.0f} steps/s",
        f"{progress.pace.updates:,.0f} updates/s",
        _split(progress),
    ]
    return "  ".join([*facts, *_left(progress)])


def picture(progress: Progress) -> Group:
    """How a run stands, in a few lines with bars."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(width=BAR)
    table.add_column()
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="bold")
    rows.add_column()
    table.add_row("steps", _bar(progress.done), "  ".join([_steps(progress), *_left(progress)]))
    for role, standing in progress.roles.items():
        bar = _bar(_approach(standing, progress.goal)) if progress.goal is not None else ""
        goal = "" if progress.goal is None else f", goal {progress.goal:,g}"
        table.add_row(f"return{of_role(role)}", bar, f"{_returns(standing)}{goal}")
        if standing.measures:
            rows.add_row(f"policy{of_role(role)}", _measures(standing))
    pace = progress.pace
    speed = f"{pace.env_steps:,.0f} env steps/s  {pace.updates:,.0f} updates/s"
    rows.add_row("speed", f"{speed}  {progress.counters.episodes:,} episodes")
    rows.add_row("time", f"{_split(progress)}  {_duration(progress.counters.seconds)} so far")
    return Group(table, rows)


def _bar(share: float | None) -> ProgressBar | str:
    """Empty where nobody knows how long it is."""
    if share is None:
        return ""
    done = min(1.0, max(0.0, share))
    return ProgressBar(1.0, done, BAR, complete_style="green", finished_style="bold green")


def _approach(standing: Standing, goal: float) -> float:
    """Share of the way from the first mean return to the goal."""
    if standing.first is None or standing.mean >= goal:
        return float(standing.mean >= goal)
    return (standing.mean - standing.first) / max(goal - standing.first, 1e-9)


def _steps(progress: Progress) -> str:
    of = f" of {progress.max_step:,}" if progress.max_step else ""
    return f"{progress.counters.env_steps:,}{of} steps"


def _returns(standing: Standing) -> str:
    if isnan(standing.mean):
        return "none yet"
    best = "" if standing.best is None else f" (best {standing.best:.1f})"
    return f"{standing.mean:.1f}{best}"


def _measures(standing: Standing) -> str:
    return "  ".join(f"{name} {value:.3g}" for name, value in standing.measures.items())


def _split(progress: Progress) -> str:
    shares = progress.pace.shares
    return " ".join(f"{part} {shares[part]:.0%}" for part in SPLIT)


def _left(progress: Progress) -> list[str]:
    return [] if progress.seconds_left is None else [f"{_duration(progress.seconds_left)} left"]


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
