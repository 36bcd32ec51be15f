"""The network interface of several learners. Their communication is tested with the learners."""

import sys

import pytest

from algorithm.processes.averaging_learner import find_interface


@pytest.mark.skipif(sys.platform != "linux", reason="interfaces are found on Linux")
@pytest.mark.parametrize("address", ["file:///tmp/meeting", "tcp://127.0.0.1:6379"])
def test_learners_of_one_machine_use_the_loopback_interface(address):
    assert find_interface(address) == "lo"
