import io
from dataclasses import replace

import pytest
from rich.console import Console

from algorithm.experiment.display import BAR, _approach, line, lines, live
from algorithm.loop.history import Counters
from algorithm.loop.progress import Pace, Progress, Standing

PACE = Pace(8123.4, 340.0, {"environment": 0.31, "acting": 0.28, "learning": 0.385, "saving": 0.01})
STANDING = Standing(123.44, 20.0, 150.26, {"entropy": 0.5123, "KL to average": 0.00214})
PROGRESS = Progress(
    False, Counters(412_000, 9000, 1234, 600, 75.4), 1_000_000, 200.0, 0.412, 107.6, PACE, {"agent": STANDING}
)


def terminal() -> Console:
    return Console(
        file=io.StringIO(), force_terminal=True, width=100, highlight=False, _environ={"TERM": "xterm-256color"}
    )


def drawn(progress) -> str:
    """What a terminal gets."""
    console = terminal()
    with live(console, console.print) as show:
        show(progress)
    return console.file.getvalue()


def test_one_line_holds_the_facts():
    assert line(PROGRESS) == (
        "412,000 of 1,000,000 steps  return 123.4 (best 150.3)  entropy 0.512  KL to average 0.00214  1,234 episodes  "
        "8,123 steps/s  340 updates/s  environment 31% acting 28% learning 38%  0:01:48 left"
    )


def test_what_is_not_known_is_left_out():
    unknown = Standing(float("nan"), None, None, {})
    progress = replace(PROGRESS, max_step=None, done=None, seconds_left=None, goal=None, roles={"agent": unknown})
    assert line(progress).startswith("412,000 steps  return none yet  1,234 episodes")
    assert "left" not in line(progress) and "nan" not in line(progress)
    assert "none yet" in drawn(progress) and "goal" not in drawn(progress)


def test_roles_are_named_where_there_are_several():
    roles = {"left": STANDING, "right": replace(STANDING, mean=-7.0)}
    assert "return of left 123.4" in line(replace(PROGRESS, roles=roles))
    assert "return of right -7.0" in line(replace(PROGRESS, roles=roles))
    assert "return of right" in drawn(replace(PROGRESS, roles=roles))


def test_lines_are_said_for_rows_of_metrics_only():
    said = []
    show = lines(said.append)
    show(PROGRESS)
    assert said == []
    show(replace(PROGRESS, row=True))
    assert said == [line(PROGRESS)]


def test_a_picture_is_drawn_when_somebody_looks_and_not_for_rows_of_metrics():
    console = terminal()
    with live(console, console.print) as show:
        empty = console.file.tell()
        show(replace(PROGRESS, row=True))
        assert console.file.tell() == empty
        show(PROGRESS)
        assert console.file.tell() > empty


def test_a_terminal_gets_a_picture_with_every_fact():
    picture = drawn(PROGRESS)
    for fact in (
        "412,000 of 1,000,000 steps",
        "0:01:48 left",
        "123.4 (best 150.3), goal 200",
        "entropy 0.512",
        "KL to average 0.00214",
        "8,123 env steps/s",
        "340 updates/s",
        "environment 31%",
        "acting 28%",
        "learning 38%",
    ):
        assert fact in picture, fact


@pytest.mark.parametrize(
    ("mean", "cells"), [(20.0, 0), (110.0, 16), (200.0, 32), (250.0, 32), (-50.0, 0)], ids=lambda value: f"{value:g}"
)
def test_the_bar_of_the_goal_runs_from_the_first_mean_to_the_goal(mean, cells):
    assert max(0.0, _approach(replace(STANDING, mean=mean), 200.0)) * BAR == pytest.approx(cells)


def test_what_is_said_meanwhile_stands_above_the_picture():
    console = terminal()
    with live(console, console.print) as show:
        show(PROGRESS)
        console.print("evaluation at 5")
        show(PROGRESS)
    assert "evaluation at 5" in console.file.getvalue()
    assert console.file.getvalue().rstrip().endswith("\x1b[?25h")  # the cursor is back


@pytest.mark.parametrize("environ", [{"TERM": "dumb"}, {}])
def test_without_a_terminal_there_are_lines(environ):
    file = io.StringIO()
    console = Console(file=file, force_terminal=bool(environ), soft_wrap=True, width=400, _environ=environ)
    with live(console, console.print) as show:
        show(replace(PROGRESS, row=True))
    assert file.getvalue() == line(PROGRESS) + "\n"
