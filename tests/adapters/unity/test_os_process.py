"""The program that listens on a port."""

import os
import socket
import sys

import pytest

from algorithm.adapters.unity import os_process


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_port_is_taken_while_a_program_listens(host):
    port = os_process.find_free_port()
    assert not os_process.is_taken(port)
    with socket.socket() as other:
        other.bind((host, port))
        other.listen()
        assert os_process.is_taken(port)
    assert not os_process.is_taken(port)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_the_holder_of_a_port_is_reported(family):
    with socket.socket(family) as other:
        try:
            other.bind(("127.0.0.1" if family == socket.AF_INET else "::1", 0))
        except OSError:
            pytest.skip("there is no such network here")
        other.listen()
        assert os_process.describe_holder(other.getsockname()[1]).endswith(f"(process {os.getpid()})")
    assert os_process.describe_holder(os_process.find_free_port()) == "another program"
