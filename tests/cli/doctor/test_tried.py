"""Checks that an adapter offers."""

import sys
from types import ModuleType

import pytest

from algorithm.adapters.adapter import EnvironmentCrashed, EnvironmentStartError, StartCheck
from algorithm.cli.doctor.check import BROKEN, MISSING, OK
from algorithm.cli.doctor.tried import list_adapter_checks, make_adapter_check


@pytest.mark.parametrize("error", [EnvironmentStartError, EnvironmentCrashed])
def test_what_an_adapter_needs_is_broken_only_for_a_run_that_needs_it(error):
    def refuse() -> str:
        raise error("port 5004 is taken: end it")

    check = make_adapter_check(StartCheck(name="ports", run=refuse))
    assert (check().state, check().line) == (MISSING, "port 5004 is taken: end it")
    assert check.as_required()().state == BROKEN
    assert make_adapter_check(StartCheck(name="ports", run=lambda: "free"))().state == OK


@pytest.mark.parametrize(
    "error", [ModuleNotFoundError("no gymnasium"), OSError("no libGL"), ValueError("numpy.dtype size changed")]
)
def test_an_adapter_whose_packages_are_broken_has_no_checks(error, monkeypatch):
    """A broken package may raise anything when it is imported."""

    class Broken(ModuleType):
        def __getattr__(self, name):
            raise error

    names = [check.name for check in list_adapter_checks()]
    monkeypatch.setitem(sys.modules, "algorithm.adapters.gym", Broken("algorithm.adapters.gym"))
    assert [check.name for check in list_adapter_checks()] == names  # GymAdapter has none
