"""Who has which port."""

import os
import socket
import sys

import pytest

pytest.importorskip("mlagents_envs")
from algorithm.adapters.unity import ports  # noqa: E402
from algorithm.adapters.unity.client import api  # noqa: E402


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_port_is_taken_while_somebody_listens(host):
    port = ports.find_free_port()
    assert not ports.is_taken(port)
    with socket.socket() as other:
        other.bind((host, port))
        other.listen()
        assert ports.is_taken(port)
    assert not ports.is_taken(port)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")
@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_the_holder_of_a_port_is_told(family):
    with socket.socket(family) as other:
        try:
            other.bind(("127.0.0.1" if family == socket.AF_INET else "::1", 0))
        except OSError:
            pytest.skip("there is no such network here")
        other.listen()
        assert ports.describe_holder(other.getsockname()[1]).endswith(f"(process {os.getpid()})")
    assert ports.describe_holder(ports.find_free_port()) == "another program"


def test_the_editor_has_the_port_of_ml_agents():
    assert ports.EDITOR_PORT == api.UnityEnvironment.DEFAULT_EDITOR_PORT
    assert ports.FIRST_PORT == api.UnityEnvironment.BASE_ENVIRONMENT_PORT
