"""A check that raises or hangs does not affect other checks."""

import os
import threading
from pathlib import Path

import pytest

from algorithm.errors import UserError
from algorithm.tools.doctor.check import (
    BROKEN,
    MISSING,
    OK,
    TIMEOUT,
    Check,
    Finding,
    Missing,
    SubprocessFailed,
    run_in_subprocess,
)

NEVER = threading.Event()
POSIX = pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")


def fail(error: Exception):
    raise error


@pytest.mark.parametrize(
    ("run", "state", "line"),
    [
        (lambda: "all\n is well", OK, "all is well"),
        (lambda: fail(Missing("get it")), MISSING, "get it"),
        (lambda: {}["b"], BROKEN, "KeyError: 'b'"),
        (lambda: fail(UserError("set b to 1")), BROKEN, "set b to 1"),
        (lambda: fail(TimeoutError("no answer within 1 s")), TIMEOUT, "no answer within 1 s"),
        (NEVER.wait, TIMEOUT, "no answer within 0.5 s: try again when the machine is less busy"),
    ],
)
def test_a_check_has_a_state_and_one_line_and_what_is_missing_is_broken_if_required(run, state, line):
    check = Check("a", run, limit=0.5)
    assert check() == Finding("a", state, line)
    assert check.as_required()() == Finding("a", BROKEN if state == MISSING else state, line)


def test_an_answer_is_a_json_value_without_printed_output():
    assert run_in_subprocess("operator:add", [1], ["a"]) == [1, "a"]
    assert run_in_subprocess("os:getpid") != os.getpid()
    assert run_in_subprocess("os:system", "echo hello") == 0


def test_modules_are_imported_from_the_folders_of_this_process(tmp_path, monkeypatch):
    Path("json.py").write_text("raise SystemExit(7)")  # in the working directory
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "of_mine.py").write_text("def double(x): return 2 * x")
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    assert run_in_subprocess("of_mine:double", 4) == 8


@pytest.mark.parametrize(
    ("function", "arguments", "why"),
    [
        ("no_such_module:f", (), "ModuleNotFoundError: No module named 'no_such_module'"),
        ("operator:truediv", (1, 0), "ZeroDivisionError: division by zero"),
        ("os:_exit", (3,), "it ended with exit code 3"),
        pytest.param("os:abort", (), "it crashed with signal SIGABRT", marks=POSIX),
    ],
)
def test_an_error_and_a_crash_are_reported(function, arguments, why):
    with pytest.raises(SubprocessFailed, match=why):
        run_in_subprocess(function, *arguments)


def test_a_process_that_hangs_is_ended():
    with pytest.raises(TimeoutError, match="no answer within 0.5 s: try again when the machine is less busy"):
        run_in_subprocess("time:sleep", 600, limit=0.5)
