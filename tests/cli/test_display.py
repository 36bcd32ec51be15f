import io
from dataclasses import replace

import pytest
from rich.console import Console

from algorithm.cli.display import (
    BAR_WIDTH,
    COLORS,
    LineDisplay,
    ProgressView,
    _compute_goal_fraction,
    _round_to_total,
    format_line,
    live_display,
)
from algorithm.training.components import PHASES
from algorithm.training.progress import Counters, Progress, RoleProgress, Throughput

NAN = float("nan")
SHARES = {**dict.fromkeys(PHASES, 0.0), "environment": 0.31, "acting": 0.28, "learning": 0.388, "saving": 0.022}
STANDING = RoleProgress(
    mean=123.44,
    first=20.0,
    best=150.26,
    length=122.9,
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
    roles={"agent": STANDING},
)
SOFT = replace(
    STANDING,
    policy_metrics={
        "discrete entropy": 0.6,
        "continuous entropy": -1.25,
        "discrete temperature": 0.1,
        "continuous temperature": 0.05,
    },
)
SOFT_FACTS = [
    "discrete entropy 0.600",
    "continuous entropy -1.250",
    "discrete temperature 0.100",
    "continuous temperature 0.0500",
]
ROLES = {"left": SOFT, "a role with a very long name": replace(STANDING, mean=NAN, best=None, length=NAN)}
FACTS = (
    "412,000 of 1,000,000 steps",
    "0:01:48 left",
    "123.4 (best 150.3)",
    "goal 200",
    "length 122.9",
    "entropy 0.512",
    "KL to average 0.00214",
    "critic loss 0.0456",
    "8,123 steps/s",
    "340 updates/s",
    "1,234 episodes",
    "0:01:15 so far",
    "environment 31%",
    "acting 28%",
    "learning 39%",
    "saving 2%",
)


def terminal(width: int = 100, **changes) -> Console:
    environ = {"TERM": "xterm-256color"}
    return Console(
        **{"file": io.StringIO(), "force_terminal": True, "width": width, "highlight": False, "_environ": environ}
        | changes
    )


def drawn(progress, width: int = 100) -> list[str]:
    """Return the lines of a picture, without colors."""
    console = terminal(width, force_terminal=False)
    console.print(ProgressView(progress))
    return [row.rstrip() for row in console.file.getvalue().splitlines()]


def test_the_line_has_all_values():
    assert format_line(PROGRESS) == (
        "412,000 of 1,000,000 steps  return 123.4 (best 150.3)  length 122.9  entropy 0.512  KL to average 0.00214  "
        "critic loss 0.0456  8,123 steps/s  340 updates/s  1,234 episodes  environment 31%  acting 28%  learning 39%  "
        "saving 2%  0:01:48 left"
    )


def test_unknown_values_are_left_out():
    unknown = RoleProgress(mean=NAN, first=None, best=None, length=NAN, policy_metrics={}, losses={})
    progress = replace(
        PROGRESS, max_step=None, fraction_done=None, seconds_left=None, goal=None, roles={"agent": unknown}
    )
    assert format_line(progress).startswith("412,000 steps  return -  8,123 steps/s")
    rows = "\n".join(drawn(progress))
    assert "no episode yet" in rows
    for text in (format_line(progress), rows):
        assert not [word for word in ("left", "nan", "goal", "length", "policy") if word in text]


def test_rates_below_ten_have_two_digits():
    slow = format_line(replace(PROGRESS, throughput=Throughput(3.24, 0.04, SHARES)))
    assert "3.2 steps/s  0.04 updates/s" in slow


def test_roles_are_named_if_there_are_several():
    assert "return of left 123.4" in format_line(replace(PROGRESS, roles=ROLES))
    rows = drawn(replace(PROGRESS, roles=ROLES))
    assert [row for row in rows if row.startswith("left") and "return 123.4" in row]
    assert [row for row in rows if row.startswith("a role") and "no episode yet" in row]


def test_lines_are_logged_for_rows_of_metrics_only():
    logged = []
    show = LineDisplay(logged.append).on_progress
    show(PROGRESS)
    assert logged == []
    show(replace(PROGRESS, wrote_row=True))
    assert logged == [format_line(PROGRESS)]


def test_the_picture_is_not_drawn_for_rows_of_metrics():
    console = terminal()
    with live_display(console, console.print) as display:
        empty = console.file.tell()
        display.on_progress(replace(PROGRESS, wrote_row=True))
        assert console.file.tell() == empty
        display.on_progress(PROGRESS)
        assert console.file.tell() > empty


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160])
@pytest.mark.parametrize(
    ("roles", "facts"),
    [
        ({"agent": STANDING}, FACTS),
        ({"agent": SOFT}, [*FACTS[:5], *SOFT_FACTS, *FACTS[7:]]),
        (ROLES, ["return 123.4 (best 150.3)", "no episode yet", *FACTS[:2], *FACTS[3:]]),
    ],
    ids=["one", "soft", "several"],
)
def test_the_picture_fits_every_width_without_breaking_texts(width, roles, facts):
    rows = drawn(replace(PROGRESS, roles=roles), width)
    assert max(map(len, rows)) <= width - len("^C"), "what a terminal echoes breaks a line"
    assert [fact for fact in facts if not any(fact in row for row in rows)] == []
    (column,) = {
        row.index(fact) for fact in ("412,000", facts[0][:6], "8,123 st", "0:01:15") for row in rows if fact in row
    }
    continued = [row for row in rows if row.startswith(" ")]
    assert {len(row) - len(row.lstrip()) for row in continued} <= {column}


def test_bars_appear_if_the_terminal_is_wide_enough():
    assert not [row for row in drawn(PROGRESS, 60) if "━" in row]
    for width in (80, 160):
        assert sum("━" in row for row in drawn(PROGRESS, width)) == 3  # steps, return and time
    assert max(row.count("━") for row in drawn(PROGRESS, 160)) == BAR_WIDTH


def test_bars_are_drawn_in_ascii_without_unicode():
    console = terminal(file=io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    console.print(ProgressView(PROGRESS))
    console.file.flush()
    assert sum(b"---" in row for row in console.file.buffer.getvalue().splitlines()) == 3


def test_names_of_roles_are_not_interpreted_as_markup():
    roles = {"[red]wide 猫": STANDING, "b": STANDING}
    rows = drawn(replace(PROGRESS, roles=roles), 100)
    assert any(row.startswith("[red]wide 猫  ") for row in rows)


def test_texts_have_colors():
    console = terminal()
    console.print(ProgressView(PROGRESS))
    plain, shown = "\n".join(drawn(PROGRESS)), console.file.getvalue()
    assert "\x1b[" not in plain
    assert "\x1b[36m123.4" in shown and "\x1b[34menvironment 31%" in shown
    assert set(COLORS) == set(PHASES)
    console.print(ProgressView(replace(PROGRESS, roles={"agent": replace(STANDING, mean=201.0)})))
    assert "\x1b[1;32m201.0\x1b[0m (best" in console.file.getvalue()  # the goal is reached


@pytest.mark.parametrize("total", [100, 17, 1])
@pytest.mark.parametrize("shares", [[0.333, 0.333, 0.334], [0.004] * 5 + [0.98], [1.0], [0.495, 0.495, 0.01]])
def test_percentages_have_the_sum_of_a_hundred(shares, total):
    rounded = _round_to_total(dict(enumerate(shares)), total)
    assert sum(rounded.values()) == total
    assert all(abs(rounded[part] - total * share) < 1 for part, share in enumerate(shares))
    assert _round_to_total({"acting": 0.0}, 100) == {}


@pytest.mark.parametrize(
    ("mean", "cells"), [(20.0, 0), (110.0, 16), (200.0, 32), (250.0, 32), (-50.0, 0)], ids=lambda value: f"{value:g}"
)
def test_the_bar_of_the_goal_starts_at_the_first_mean_return(mean, cells):
    assert max(0.0, _compute_goal_fraction(replace(STANDING, mean=mean), 200.0)) * BAR_WIDTH == pytest.approx(cells)


def test_the_picture_follows_the_width_of_the_terminal():
    console = terminal(160)
    picture = ProgressView(PROGRESS)
    console.print(picture)
    wide = console.file.getvalue().count("\n")
    console.width = 40
    console.print(picture)
    assert console.file.getvalue().count("\n") - wide > wide


def test_output_during_training_is_printed_above_the_picture():
    console = terminal()
    with live_display(console, console.print) as display:
        display.on_progress(PROGRESS)
        console.print("evaluation at 5")
        display.on_progress(PROGRESS)
    assert "evaluation at 5" in console.file.getvalue()
    assert console.file.getvalue().rstrip().endswith("\x1b[?25h")  # the cursor is back


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


@pytest.mark.parametrize("environ", [{"TERM": "dumb"}, {}])
def test_without_a_terminal_there_are_lines(environ):
    file = io.StringIO()
    console = Console(file=file, force_terminal=bool(environ), soft_wrap=True, width=400, _environ=environ)
    with live_display(console, console.print) as display:
        display.on_progress(replace(PROGRESS, wrote_row=True))
    assert file.getvalue() == format_line(PROGRESS) + "\n"
