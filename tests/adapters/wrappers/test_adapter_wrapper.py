"""Delegation to another adapter, and an adapter that is opened by its first use."""

from __future__ import annotations

import pytest

from algorithm.adapters.adapter import EnvironmentStartError
from algorithm.adapters.probe import ProbeAdapter
from algorithm.adapters.wrappers import OnDemand
from tests.adapters.configs import config
from tests.adapters.contract import make_contract
from tests.fakes import TwoRoles

TestProbeOnDemand = make_contract(lambda: OnDemand(lambda: ProbeAdapter(config("chain", 3, {}))))
TestLateRolesOnDemand = make_contract(lambda: OnDemand(lambda: TwoRoles(config("", 2, {}))))


def test_the_adapter_is_opened_once_by_its_first_use():
    opened = []

    def make():
        opened.append(ProbeAdapter(config("chain", 1, {})))
        return opened[-1]

    adapter = OnDemand(make)
    adapter.close()
    assert opened == []
    adapter.reset(0)
    adapter.reset(1)
    assert len(opened) == 1 and adapter.roles is opened[0].roles


def test_a_start_error_is_raised_by_the_first_use():
    def make():
        raise EnvironmentStartError("no licence")

    adapter = OnDemand(make)
    with pytest.raises(EnvironmentStartError, match="no licence"):
        adapter.reset(0)
    adapter.close()
