"""Bars of the display, each one line high: progress, parts of a whole, and the course of a number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress_bar import ProgressBar
from rich.text import Text

# Parts of the time: their color, and their sign in a bar without colors.
COLORS = {
    "environment": "blue",
    "acting": "cyan",
    "learning": "green",
    "evaluation": "magenta",
    "saving": "yellow",
    "reporting": "red",
    "starting": "white",
}
SIGNS = {
    "environment": "e",
    "acting": "a",
    "learning": "l",
    "evaluation": "v",
    "saving": "s",
    "reporting": "r",
    "starting": "t",
}
LEVELS, ASCII_LEVELS = "▁▂▃▄▅▆▇█", "_.-=+*#@"


def make_bar(share: float | None, width: int) -> ProgressBar | Text:
    """Return a bar that is filled up to `share`; an empty text if `share` is None."""
    if share is None:
        return Text()
    done = min(1.0, max(0.0, share))
    return ProgressBar(1.0, done, width, complete_style="green", finished_style="bold green")


class StackedBar:
    """A bar with a section for each part of the time: in its color, or with its sign on a console without colors."""

    def __init__(self, shares: Mapping[str, float], width: int):
        self.cells = round_to_total(shares, width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        sign = "-" if options.legacy_windows or options.ascii_only else "━"
        signs = SIGNS if is_colorless(console) else dict.fromkeys(COLORS, sign)
        yield Text.assemble(*((signs[part] * self.cells[part], COLORS[part]) for part in COLORS if part in self.cells))


class Sparkline:
    """The course of a number: a column for each mean of successive values, whose height is their rank in the range."""

    def __init__(self, values: Sequence[float], width: int):
        self.values = average_bins(values, width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        levels = ASCII_LEVELS if options.legacy_windows or options.ascii_only else LEVELS
        yield Text(draw_levels(self.values, levels), "cyan", no_wrap=True)


def is_colorless(console: Console) -> bool:
    """Return whether a console shows no colors, as with the variable NO_COLOR."""
    return console.no_color or console.color_system is None


def draw_levels(values: Sequence[float], levels: str = LEVELS) -> str:
    """Return a character for each value: the first level for the smallest one, the last level for the largest one."""
    if not values:
        return ""
    low, high = min(values), max(values)
    if high <= low:
        return levels[0] * len(values)
    return "".join(levels[round((value - low) / (high - low) * (len(levels) - 1))] for value in values)


def average_bins(values: Sequence[float], bins: int) -> list[float]:
    """Return the means of `bins` parts of successive values, of about the same length; fewer values are unchanged."""
    if len(values) <= bins:
        return list(values)
    limits = [len(values) * number // bins for number in range(bins + 1)]
    return [fmean(values[start:end]) for start, end in zip(limits, limits[1:], strict=False)]


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
