"""The display of a run: its line, its panel with bars and the course of a number, and its screen."""

import io
import math
import re
from dataclasses import replace

import pytest
from rich.console import Console

from algorithm.cli import display as module
from algorithm.cli.display import ASCII_LEVELS, BAR_WIDTH, MAX_POINTS, PARTS, ProgressPanel, format_line, live_display
from algorithm.training.progress import Counters, EvaluatedMean, Progress, RoleProgress, Throughput
from algorithm.training.timer import PHASES

NAN = float("nan")
SHARES = {**dict.fromkeys(PHASES, 0.0), "environment": 0.31, "acting": 0.28, "learning": 0.388, "saving": 0.022}
POLICY = {"entropy": -1.25, "temperature": 0.05}
STANDING = RoleProgress(
    mean=123.44,
    first=20.0,
    best=150.26,
    length=122.9,
    lanes=16,
    policy_metrics={"entropy": 0.5123, "KL to average": 0.00214},
    losses={"critic": 0.0456},
)
PROGRESS = Progress(
    wrote_row=False,
    counters=Counters(env_steps=412_000, updates=9000, episodes=1234, iterations=600, seconds=75.4),
    max_step=1_000_000,
    goal=200.0,
    fraction_done=0.412,
    seconds_left=107.6,
    throughput=Throughput(8123.4, 340.0, SHARES),
    device="cuda:0",
    faults=2,
    roles={"agent": STANDING},
    evaluation=EvaluatedMean(env_steps=400_000, mean=130.04),
    best_evaluation=EvaluatedMean(env_steps=50_000, mean=140.0),
)
SOFT = replace(
    STANDING,
    policy_metrics={f"{kind} {name}": value for kind in ("discrete", "continuous") for name, value in POLICY.items()},
)
SOFT_FACTS = [
    f"{kind} {fact}" for kind in ("discrete", "continuous") for fact in ("entropy -1.250", "temperature 0.0500")
]
TRENDS = {"agent": [math.sin(index / 9) for index in range(150)], "left": [1.0, 2.0, 3.0]}
MEMORY = 412_000_000
ROLES = {"left": SOFT, "a role with a very long name": replace(STANDING, mean=NAN, best=None, length=NAN)}
FACTS = (
    "412,000 of 1,000,000 steps; 0:01:48 left; 123.4 (best 150.3); goal 200; length 122.9; entropy 0.512; "
    "KL to average 0.00214; critic loss 0.0456; 8,123 steps/s; 340 updates/s; 1,234 episodes; agents; device cuda:0; "
    "memory 412 MB; 2 faults; 0:01:15 so far; environment 31%; acting 28%; learning 39%; saving 2%; "
    "130.0 at 400,000 steps; best 140.0 at 50,000 steps"
).split("; ")


def terminal(width: int = 100, **changes) -> Console:
    environ = {"TERM": "xterm-256color"}
    return Console(
        **{"file": io.StringIO(), "force_terminal": True, "width": width, "highlight": False, "_environ": environ}
        | changes
    )


def panel(progress) -> ProgressPanel:
    return ProgressPanel(progress, TRENDS, "gym/cartpole first", MEMORY)


def drawn(progress, width: int = 100) -> list[str]:
    """Return the lines of a panel, without colors and without its border."""
    console = terminal(width, force_terminal=False)
    console.print(panel(progress))
    return [row.strip("│ ") for row in console.file.getvalue().splitlines()]


def test_the_line_has_all_values():
    assert format_line(PROGRESS) == (
        "412,000 of 1,000,000 steps  return 123.4 (best 150.3)  length 122.9  entropy 0.512  KL to average 0.00214  "
        "critic loss 0.0456  8,123 steps/s  340 updates/s  1,234 episodes  environment 31%  acting 28%  learning 39%  "
        "saving 2%  0:01:48 left"
    )


def test_unknown_values_are_left_out():
    unknown = RoleProgress(mean=NAN, first=None, best=None, length=NAN, policy_metrics={}, losses={})
    names = ("max_step", "fraction_done", "seconds_left", "goal", "evaluation", "best_evaluation")
    progress = replace(PROGRESS, roles={"agent": unknown}, **dict.fromkeys(names))
    assert format_line(progress).startswith("412,000 steps  return -  8,123 steps/s")
    rows = "\n".join(drawn(progress))
    assert "no episode yet" in rows
    for text in (format_line(progress), rows):
        assert not any(word in text for word in ("left", "nan", "goal", "length", "policy", "losses", "evaluation"))


def test_rates_below_ten_have_two_digits():
    slow = format_line(replace(PROGRESS, throughput=Throughput(3.24, 0.04, SHARES)))
    assert "3.2 steps/s  0.04 updates/s" in slow


def test_roles_are_named_if_there_are_several():
    assert "return of left 123.4" in format_line(replace(PROGRESS, roles=ROLES))
    rows = drawn(replace(PROGRESS, roles=ROLES), 120)
    assert [row for row in rows if row.startswith("left") and "▁▄█" in row.replace("▅", "▄") and "return 123.4" in row]
    assert [row for row in rows if row.startswith("a role") and "no episode yet" in row]


def test_the_picture_is_not_drawn_for_rows_of_metrics():
    console = terminal()
    with live_display(console, console.print) as display:
        empty = console.file.tell()
        display.on_progress(replace(PROGRESS, wrote_row=True))
        assert console.file.tell() == empty
        display.on_progress(PROGRESS)
        assert console.file.tell() > empty


@pytest.mark.parametrize(
    ("roles", "facts"),
    [
        ({"agent": STANDING}, FACTS),
        ({"agent": SOFT}, [*FACTS[:5], *SOFT_FACTS, *FACTS[7:]]),
        (ROLES, ["return 123.4 (best 150.3)", "no episode yet", *FACTS[:2], *FACTS[3:]]),
    ],
    ids=["one", "soft", "several"],
)
def test_the_panel_fits_every_width_without_breaking_texts(roles, facts):
    progress = replace(PROGRESS, roles=roles)
    for width in range(40, 201):
        console = terminal(width, record=True)
        console.print(panel(progress))
        rows = console.export_text().splitlines()
        assert max(map(len, rows)) <= width - len("^C"), "what a terminal echoes breaks a line"
        assert {len(row) for row in rows} == {width - 3}
        assert sum("█" in row for row in rows) == 1, "the sparkline"
        label = min((width - 5) // 4, max(map(len, [*roles, "evaluation"])))
        fitting = [fact for fact in facts if len(fact) <= width - 7 - label]  # border, margin and gap
        assert [fact for fact in fitting if not any(fact in row for row in rows)] == [], width
        assert len(fitting) == len(facts) or width < 50


def test_bars_appear_if_the_terminal_is_wide_enough():
    assert not [row for row in drawn(PROGRESS, 60) if "━" in row]
    for width in (80, 160):
        rows = drawn(PROGRESS, width)
        assert [row.split()[0] for row in rows if "━" in row] == ["steps", "goal"]
        assert [row.split()[0] for row in rows if "lll" in row] == ["time"]
    assert max(len(re.findall("[eals]", row.split()[1])) for row in drawn(PROGRESS, 160) if "lll" in row) == BAR_WIDTH


def test_bars_are_drawn_in_ascii_without_unicode():
    console = terminal(file=io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    console.print(panel(PROGRESS))
    console.file.flush()
    written = console.file.buffer.getvalue()
    assert sum(b"---" in row for row in written.splitlines()[1:-1]) == 3
    assert b"_" in written and b"@" in written  # the sparkline


def test_without_colors_the_time_bar_has_signs_that_its_texts_explain(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    console = terminal(130, _environ={"TERM": "xterm-256color", "NO_COLOR": "1"})
    console.print(panel(PROGRESS))
    written = console.file.getvalue()
    assert not re.search(r"\x1b\[[\d;]*[34]\d", written)  # no color of text or background
    (row,) = [row for row in written.splitlines() if "so far" in row]
    bar = re.search(r"e+a+l+s+", row).group()
    assert [bar.count(sign) for sign in "eals"] == [10, 9, 12, 1]
    assert "e: environment 31%" in row and "l: learning 39%" in row
    assert len({sign for _, sign in PARTS.values()}) == len(PARTS)


def test_names_of_roles_are_not_interpreted_as_markup():
    roles = {"[red]wide 猫": STANDING, "b": STANDING}
    rows = drawn(replace(PROGRESS, roles=roles), 100)
    assert any(row.startswith("[red]wide 猫  ") for row in rows)
    console = terminal()
    console.print(ProgressPanel(PROGRESS, {}, "[red]gym/a"))
    assert "[red]gym/a" in console.file.getvalue()


def test_texts_have_colors():
    console = terminal()
    console.print(panel(PROGRESS))
    plain, shown = "\n".join(drawn(PROGRESS)), console.file.getvalue()
    assert "\x1b[" not in plain
    assert "\x1b[36m123.4" in shown and "\x1b[34menvironment 31%" in shown
    assert set(PARTS) == set(PHASES)
    console.print(panel(replace(PROGRESS, roles={"agent": replace(STANDING, mean=201.0)})))
    assert "\x1b[1;32m201.0\x1b[0m (best" in console.file.getvalue()  # the goal is reached


@pytest.mark.parametrize(
    ("mean", "cells"), [(20.0, 0), (110.0, 16), (200.0, 32), (250.0, 32), (-50.0, 0)], ids=lambda value: f"{value:g}"
)
def test_the_bar_of_the_goal_starts_at_the_first_mean_return(mean, cells):
    assert max(0.0, module.compute_goal_fraction(replace(STANDING, mean=mean), 200.0)) * BAR_WIDTH == pytest.approx(
        cells
    )


class Screen:
    """A terminal that wraps lines which are wider than it, again whenever its width changes.

    The text of a row is kept as one logical line until it ends; what is shown are its parts of the width.
    """

    def __init__(self, width: int, file: io.StringIO):
        self.width, self.file, self.lines, self.row = width, file, [""], 0
        self._read = 0  # characters of the file

    def shown(self) -> list[str]:
        return [part for line in self.lines for part in self._split(line)]

    def update(self) -> None:
        """Show what was written since the last call."""
        written, self._read = self.file.getvalue()[self._read :], len(self.file.getvalue())
        for token in re.finditer(r"\x1b\[(?P<number>[?\d;]*)(?P<kind>[A-Za-z])|(?P<end>\n)|\r|[^\x1b\r\n]+", written):
            if token["kind"] == "A":
                self._replace_shown(self._cursor() - int(token["number"] or 1))
            elif token["kind"] == "K":
                self._erase()
            elif token["end"]:
                self.row += 1
                self.lines += [""] * (self.row + 1 - len(self.lines))
            elif not token["kind"] and token[0] != "\r":
                self.lines[self.row] += token[0]

    def _split(self, line: str) -> list[str]:
        return [line[start : start + self.width] for start in range(0, len(line), self.width)] or [""]

    def _cursor(self) -> int:
        """Return the number of the shown row with the cursor, which is at the end of its line."""
        return sum(len(self._split(line)) for line in self.lines[: self.row + 1]) - 1

    def _replace_shown(self, row: int) -> None:
        """Move the cursor to a shown row; lines that are wrapped become lines of their own."""
        self.lines, self.row = self.shown(), max(0, row)

    def _erase(self) -> None:
        self._replace_shown(self._cursor())
        self.lines[self.row] = ""


@pytest.mark.parametrize("widths", [(100, 60), (160, 50, 120), (120, 119), (60, 200), (200, 40, 41, 40)])
def test_a_resize_during_a_run_leaves_no_part_of_the_old_panel(widths):
    console = terminal(widths[0], height=60)
    screen = Screen(widths[0], console.file)
    with live_display(console, console.print, "title") as display:
        console.print("first line")
        for number, width in enumerate(widths):
            screen.width = console.width = width
            if number % 2:  # a line above the panel, before the panel is drawn again
                console.print(f"line {number}")
                screen.update()
            display.on_progress(replace(PROGRESS, has_ended=True))
            screen.update()
            shown = [row.rstrip() for row in screen.shown()]
            assert [row for row in shown if "first line" in row or row.startswith("line ")] == [
                "first line",
                *(f"line {each}" for each in range(1, number + 1, 2)),
            ]
            assert sum("title" in row for row in shown) == 1
            assert sum("412,000" in row for row in shown) == 1
            assert sum("device cuda:0" in row for row in shown) == 1
            assert max(map(len, shown)) <= width


def test_a_panel_that_was_higher_than_the_terminal_leaves_the_lines_above_it():
    console = terminal(100, height=6)
    screen = Screen(100, console.file)
    with live_display(console, console.print) as display:
        for number in range(5):
            console.print(f"line {number}")
        display.on_progress(PROGRESS)
        screen.update()
        screen.width = 50
        console.size = (50, 40)
        display.on_progress(PROGRESS)
        screen.update()
    shown = [row.rstrip() for row in screen.shown()]
    assert shown[:5] == [f"line {number}" for number in range(5)]
    assert [number for number, row in enumerate(shown) if "───" in row] == [5, len(shown) - 1]
    assert sum("412,000" in row for row in shown) == 1 and not any("..." in row for row in shown)


@pytest.mark.parametrize("size", [(60, 40), (100, 12)], ids=["narrower", "lower"])
def test_the_panel_is_drawn_again_as_soon_as_the_terminal_has_another_size(size, monkeypatch):
    clock = iter([0.0])
    monkeypatch.setattr(module, "process_time", lambda: next(clock, 1.0))  # the first drawing takes a second
    monkeypatch.setattr(module, "perf_counter", lambda: 0.0)
    console = terminal(100, height=40)
    with live_display(console, console.print) as display:
        display.on_progress(PROGRESS)
        drawn = console.file.tell()
        display.on_progress(PROGRESS)
        assert console.file.tell() == drawn
        console.size = size
        display.on_progress(PROGRESS)
        assert console.file.tell() > drawn


def test_drawing_takes_a_bounded_share_of_the_cpu_time(monkeypatch):
    """A drawing takes 10 ms of CPU time; the process computes for 20 ms between two calls."""
    clock = {"cpu": 100.0, "wall": 0.0}

    class Slow(ProgressPanel):
        drawings = 0

        def __init__(self, *arguments):
            super().__init__(*arguments)
            Slow.drawings += 1
            clock["cpu"] += 0.01

    monkeypatch.setattr(module, "ProgressPanel", Slow)
    monkeypatch.setattr(module, "process_time", lambda: clock["cpu"])
    monkeypatch.setattr(module, "perf_counter", lambda: clock["wall"])
    console = terminal()
    with live_display(console, console.print) as display:
        for _ in range(1000):
            display.on_progress(PROGRESS)
            clock["cpu"] += 0.02
            clock["wall"] += 0.001
        assert Slow.drawings * 0.01 <= module.MAX_SHARE * 20 + 0.01
        before = Slow.drawings
        assert before > 10
        clock["wall"] += module.MAX_SECONDS
        display.on_progress(PROGRESS)
        assert Slow.drawings == before + 1
        display.on_progress(replace(PROGRESS, has_ended=True))
        assert Slow.drawings == before + 2


@pytest.mark.parametrize("calls", [MAX_POINTS - 2, 1000, 20_000])
def test_the_sparkline_is_of_the_whole_run(calls, monkeypatch):
    clock = iter([0.0])
    monkeypatch.setattr(module, "process_time", lambda: next(clock, 1.0))  # no drawing but the first and the last
    monkeypatch.setattr(module, "perf_counter", lambda: 0.0)
    console = terminal(100)
    with live_display(console, console.print) as display:
        for mean in [NAN, *range(calls)]:
            roles = {"agent": replace(STANDING, mean=float(mean))}
            display.on_progress(replace(PROGRESS, roles=roles, has_ended=mean == calls - 1))
    last = console.file.getvalue().rpartition("return")[2]
    line = re.search("[▁▂▃▄▅▆▇█]+", last).group()
    assert line[0] == "▁" and line[-1] == "█" and list(line) == sorted(line)
    (points,) = display.trends.values()
    assert min(calls, MAX_POINTS) / 2 <= len(points) <= MAX_POINTS and points == sorted(points)
    assert points[0] <= calls / 100 and points[-1] == calls - 1


def test_the_last_picture_stays():
    console = terminal()
    with live_display(console, console.print) as display:
        display.on_progress(PROGRESS)
        before = console.file.tell()
        display.on_progress(replace(PROGRESS, has_ended=True, seconds_left=None))
    console.file.seek(before)
    last = console.file.read()
    assert "in all" in last and "8,123 steps/s" in last and "123.4" in last
    assert "so far" not in last and "left" not in last
    assert console.file.getvalue().rstrip().endswith("\x1b[?25h")  # the cursor is back


@pytest.mark.parametrize("environ", [{"TERM": "dumb"}, {}])
def test_without_a_terminal_there_is_a_line_for_each_row_of_metrics(environ):
    file = io.StringIO()
    console = Console(file=file, force_terminal=bool(environ), soft_wrap=True, width=400, _environ=environ)
    with live_display(console, console.print) as display:
        display.on_progress(PROGRESS)
        display.on_progress(replace(PROGRESS, wrote_row=True))
    assert file.getvalue() == format_line(PROGRESS) + "\n"


def test_an_evaluation_that_is_the_best_one_is_marked_and_one_over_roles_is_named():
    rows = "\n".join(drawn(replace(PROGRESS, evaluation=PROGRESS.best_evaluation)))
    assert "140.0 at 50,000 steps  the best" in rows and "mean over roles" not in rows
    assert "mean over roles" in "\n".join(drawn(replace(PROGRESS, roles=ROLES), 160))


def test_played_episodes_are_counted_in_one_line_of_a_terminal_which_disappears():
    console = terminal(30, height=20)
    screen = Screen(30, console.file)
    with module.display_playing(console, console.print) as show:
        show("playing", 0, 20, 1)
        screen.update()
        assert screen.shown() == ["playing: 0 of 20 episodes, st\N{HORIZONTAL ELLIPSIS}"]
        console.print("video: a.mp4")
        show("recording videos", 20, 20, 1234)
        screen.update()
        assert screen.shown() == ["video: a.mp4", "recording videos: 20 of 20 ep\N{HORIZONTAL ELLIPSIS}"]
    screen.update()
    assert [row for row in screen.shown() if row] == ["video: a.mp4"]


def test_played_episodes_have_a_line_for_each_activity_elsewhere():
    logged = []
    with module.display_playing(terminal(force_terminal=False), logged.append) as show:
        for activity in ("playing", "recording videos"):
            for done in range(3):
                show(activity, done, 2, 5)
    assert logged == ["playing: 2 episodes", "recording videos: 2 episodes"]


@pytest.mark.parametrize("total", [100, 17, 1])
@pytest.mark.parametrize("shares", [[0.333, 0.333, 0.334], [0.004] * 5 + [0.98], [1.0], [0.495, 0.495, 0.01]])
def test_percentages_have_the_sum_of_a_hundred(shares, total):
    rounded = module.round_to_total(dict(enumerate(shares)), total)
    assert sum(rounded.values()) == total
    assert all(abs(rounded[part] - total * share) < 1 for part, share in enumerate(shares))
    assert module.round_to_total({"acting": 0.0}, 100) == {}


@pytest.mark.parametrize(
    ("values", "width", "line"),
    [
        ([], 10, ""),
        ([5.0], 10, "▁"),
        ([3.0, 3.0, 3.0], 10, "▁▁▁"),
        ([0.0, 1.0], 10, "▁█"),
        ([0, 1, 2, 3, 4, 5, 6, 7], 10, "▁▂▃▄▅▆▇█"),
        ([-7, 0, -3.4, -3.6], 10, "▁█▅▄"),
        ([1e300, -1e300, 0.0], 10, "█▁▅"),
        ([0, 0, 3, 11, 14, 14], 3, "▁▅█"),  # means of two values each
        ([0, 2, 6, 9, 9], 3, "▁▄█"),  # means of 0, of 2 and 6, of 9 and 9
    ],
)
def test_known_sparklines(values, width, line):
    assert module.draw_sparkline(values, module.LEVELS, width).plain == line


def test_levels_have_an_ascii_character_each():
    assert len(module.LEVELS) == len(ASCII_LEVELS) == len(set(ASCII_LEVELS))
    assert ASCII_LEVELS.isascii()
    assert module.draw_sparkline([0.0, 1.0], ASCII_LEVELS, 10).plain == "_@"


def test_the_memory_of_this_process_is_plausible():
    held = bytearray(50_000_000)
    held[::4096] = b"1" * len(held[::4096])
    used = module.read_memory()
    assert used is not None and 50_000_000 < used < 10**11
