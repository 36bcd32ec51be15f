"""Every error is one informative line."""

import random
import re
import sys
from pathlib import Path

import pytest

from algorithm.adapters.env_wrappers import call_simulator
from algorithm.errors import MAX_LENGTH, describe_exit, format_traceback, summarize_error, summarize_with_place


def raised(error):
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


def test_a_summary_is_type_and_message():
    assert summarize_error(ValueError("too\n  small")) == "ValueError: too small"
    assert format_traceback(raised(ValueError("small"))).endswith("ValueError: small\n")


def test_a_summary_without_message_is_file_and_line():
    assert summarize_error(AssertionError()) == "AssertionError"
    error = raised(AssertionError())
    where = f"AssertionError in {__file__}, line {raised.__code__.co_firstlineno + 2}"
    assert summarize_error(error) == where
    assert format_traceback(error).splitlines()[-1] == where


def test_the_place_is_in_the_code_of_the_user():
    with pytest.raises(ValueError) as caught:
        random.Random().sample([], 3)
    line = raised.__code__.co_firstlineno
    own = next(number for number, text in enumerate(Path(__file__).read_text().splitlines(), 1) if ".sample(" in text)
    assert summarize_with_place(caught.value).endswith(f"({__file__}, line {own})")
    assert summarize_with_place(raised(ValueError("no"))) == f"ValueError: no ({__file__}, line {line + 2})"
    assert summarize_with_place(ValueError("no")) == "ValueError: no"
    with pytest.raises(RuntimeError, match="sys.exit") as caught:
        call_simulator(lambda: sys.exit(3))
    assert re.fullmatch(
        rf"RuntimeError: sys.exit.* \({re.escape(__file__)}, line \d+\)", summarize_with_place(caught.value)
    )


def test_a_long_message_is_shortened():
    assert summarize_error(ValueError("x" * 5000)) == f"ValueError: {'x' * MAX_LENGTH} ..."


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (0, "ended with exit code 0"),
        (3, "ended with exit code 3"),
        (0xC0000005, "ended with exit code 3221225477 (0xc0000005)"),
        (-9, "crashed with signal SIGKILL"),
        (-200, "crashed with signal 200"),
    ],
)
def test_an_exit_code_is_a_line(code, line):
    assert describe_exit(code) == line
