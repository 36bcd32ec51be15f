"""Checks that an adapter offers."""

from algorithm.adapters.adapter import EnvironmentStartError, StartCheck
from algorithm.cli.doctor.check import BROKEN, MISSING, OK
from algorithm.cli.doctor.tried import make_adapter_check


def refuse() -> str:
    raise EnvironmentStartError("port 5004 is taken: end it")


def test_a_failed_check_of_an_adapter_is_broken_only_for_runs_that_use_it():
    check = make_adapter_check(StartCheck(name="ports", run=refuse))
    assert (check().state, check().line) == (MISSING, "port 5004 is taken: end it")
    assert check.as_required()().state == BROKEN
    assert make_adapter_check(StartCheck(name="ports", run=lambda: "free"))().state == OK
