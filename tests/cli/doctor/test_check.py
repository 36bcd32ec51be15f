"""A look that raises or hangs costs nothing but itself."""

import threading

from algorithm.cli.doctor.check import BROKEN, MISSING, OK, TIMEOUT, Check, Finding
from algorithm.cli.doctor.subprocess_probe import SubprocessTimeout
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
