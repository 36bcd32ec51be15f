"""A look that raises or hangs costs nothing but itself."""

import os
import threading
from pathlib import Path

import pytest

from algorithm.cli.doctor.check import (
    BROKEN,
    MISSING,
    OK,
    TIMEOUT,
    Check,
    Finding,
    SubprocessFailed,
    SubprocessTimeout,
    run_in_subprocess,
)
from algorithm.errors import UserError


def test_a_look_tells_what_it_saw():
    assert Check("a", lambda: (OK, "all\n is well"))() == Finding("a", OK, "all is well")


def test_a_look_that_raises_is_broken_in_one_line():
    assert Check("a", lambda: {}["b"])() == Finding("a", BROKEN, "KeyError: 'b'")

    def wrong():
        raise UserError("set b to 1")

    assert Check("a", wrong)() == Finding("a", BROKEN, "set b to 1")


def test_a_look_that_hangs_is_a_timeout():
    never = threading.Event()
    late = "no answer within 0.05 s: try again when the machine is less busy"
    assert Check("a", never.wait, limit=0.05)() == Finding("a", TIMEOUT, late)
    never.set()


def test_a_look_that_reports_a_timeout_is_one():
    def wait():
        raise SubprocessTimeout("no answer within 1 s")

    assert Check("a", wait).as_required()() == Finding("a", TIMEOUT, "no answer within 1 s")


def test_what_is_asked_for_must_not_be_missing():
    check = Check("a", lambda: (MISSING, "get it"))
    assert check() == Finding("a", MISSING, "get it")
    assert check.as_required()() == Finding("a", BROKEN, "get it")
    assert Check("a", lambda: (OK, "")).as_required()().state == OK


def test_an_answer_is_a_value_of_json():
    assert run_in_subprocess("operator:add", [1], ["a"]) == [1, "a"]
    assert run_in_subprocess("os:getpid") != os.getpid()


def test_what_is_printed_is_no_answer():
    assert run_in_subprocess("builtins:print", "hello") is None
    assert run_in_subprocess("os:system", "echo hello") == 0


def test_modules_come_from_where_this_process_has_them(tmp_path, monkeypatch):
    Path("json.py").write_text("raise SystemExit(7)")  # in the working directory
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "of_mine.py").write_text("def double(x): return 2 * x")
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    assert run_in_subprocess("of_mine:double", 4) == 8


@pytest.mark.parametrize(
    ("function", "told", "why"),
    [
        ("no_such_module:f", (), "ModuleNotFoundError: No module named 'no_such_module'"),
        ("operator:truediv", (1, 0), "ZeroDivisionError: division by zero"),
        ("os:_exit", (3,), "it ended with exit code 3"),
    ],
)
def test_what_goes_wrong_is_told(function, told, why):
    with pytest.raises(SubprocessFailed, match=why):
        run_in_subprocess(function, *told)


@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")
def test_a_crash_is_told():
    with pytest.raises(SubprocessFailed, match="it crashed with signal SIGABRT"):
        run_in_subprocess("os:abort")


def test_a_process_that_hangs_is_given_up():
    with pytest.raises(SubprocessTimeout, match="no answer within 0.5 s: try again when the machine is less busy"):
        run_in_subprocess("time:sleep", 600, limit=0.5)
