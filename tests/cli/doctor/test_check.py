"""A check that raises or hangs does not affect other checks."""

import threading

from algorithm.cli.doctor.check import BROKEN, MISSING, OK, TIMEOUT, Check, Finding
from algorithm.cli.doctor.subprocess_probe import SubprocessTimeout
from algorithm.errors import UserError


def test_a_check_returns_the_line_of_its_function():
    assert Check("a", lambda: (OK, "all\n is well"))() == Finding("a", OK, "all is well")


def test_a_check_that_raises_is_broken_in_one_line():
    assert Check("a", lambda: {}["b"])() == Finding("a", BROKEN, "KeyError: 'b'")

    def wrong():
        raise UserError("set b to 1")

    assert Check("a", wrong)() == Finding("a", BROKEN, "set b to 1")


def test_a_check_that_hangs_is_a_timeout():
    never = threading.Event()
    late = "no answer within 0.05 s: try again when the machine is less busy"
    assert Check("a", never.wait, limit=0.05)() == Finding("a", TIMEOUT, late)
    never.set()


def test_a_check_that_raises_a_timeout_is_a_timeout():
    def wait():
        raise SubprocessTimeout("no answer within 1 s")

    assert Check("a", wait).as_required()() == Finding("a", TIMEOUT, "no answer within 1 s")


def test_a_requested_package_that_is_missing_is_broken():
    check = Check("a", lambda: (MISSING, "get it"))
    assert check() == Finding("a", MISSING, "get it")
    assert check.as_required()() == Finding("a", BROKEN, "get it")
    assert Check("a", lambda: (OK, "")).as_required()().state == OK
