"""Every error is one informative line, and text of foreign files loses what harms a terminal and what is secret."""

import random
import re
import sys
from pathlib import Path

import pytest

from algorithm import errors
from algorithm.adapters.vector import call_simulator


def raised(error):
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


def test_a_summary_is_type_and_message():
    assert errors.summarize_error(ValueError("too\n  small")) == "ValueError: too small"
    assert errors.format_traceback(raised(ValueError("small"))).endswith("ValueError: small\n")


def test_a_summary_without_message_is_file_and_line():
    assert errors.summarize_error(AssertionError()) == "AssertionError"
    error = raised(AssertionError())
    where = f"AssertionError in {__file__}, line {raised.__code__.co_firstlineno + 2}"
    assert errors.summarize_error(error) == where
    assert errors.format_traceback(error).splitlines()[-1] == where


def test_the_place_is_in_the_code_of_the_user():
    with pytest.raises(ValueError) as caught:
        random.Random().sample([], 3)
    line = raised.__code__.co_firstlineno
    own = next(number for number, text in enumerate(Path(__file__).read_text().splitlines(), 1) if ".sample(" in text)
    assert errors.summarize_with_place(caught.value).endswith(f"({__file__}, line {own})")
    assert errors.summarize_with_place(raised(ValueError("no"))) == f"ValueError: no ({__file__}, line {line + 2})"
    assert errors.summarize_with_place(ValueError("no")) == "ValueError: no"
    with pytest.raises(RuntimeError, match="sys.exit") as caught:
        call_simulator(lambda: sys.exit(3))
    assert re.fullmatch(
        rf"RuntimeError: sys.exit.* \({re.escape(__file__)}, line \d+\)", errors.summarize_with_place(caught.value)
    )


def test_a_long_message_is_shortened():
    assert errors.summarize_error(ValueError("x" * 5000)) == f"ValueError: {'x' * errors.MAX_LENGTH} ..."


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
    assert errors.describe_exit(code) == line


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b]0;title\x07\x1b[2Jname", "]0;title[2Jname"),
        ("\x9b31mred\x7f\x08\r", "31mred"),
        ("a\u202egnp.exe", "agnp.exe"),
        ("lines\nand\ttabs, \u00e9\u4e2d\U0001f600", "lines\nand\ttabs, \u00e9\u4e2d\U0001f600"),
    ],
)
def test_control_characters_are_removed(text, expected):
    assert errors.remove_control_characters(text) == expected == errors.clean_text(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://user:secret@host:5000/path", "https://***@host:5000/path"),
        ("at (postgresql://user:p@ss@host/db): failed", "at (postgresql://***@host/db): failed"),
        ("https://token@host and https://other:word@host", "https://***@host and https://***@host"),
        ("https://host:5000/path@2", "https://host:5000/path@2"),
        ("mail me@host, see https://host", "mail me@host, see https://host"),
    ],
)
def test_logins_in_addresses_are_redacted(text, expected):
    assert errors.redact_logins(text) == expected == errors.clean_text(text)
