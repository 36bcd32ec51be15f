"""Both ends of the protocol in one process."""

import pytest

pytest.importorskip("mlagents_envs")
from algorithm.adapters.adapter import EnvironmentCrashed, EnvironmentStartError  # noqa: E402
from algorithm.adapters.unity import self_test as handshake  # noqa: E402
from algorithm.cli.doctor.subprocess_probe import SubprocessFailed, run_in_subprocess  # noqa: E402


def test_what_the_scene_raises_is_told(monkeypatch):
    def play(port):
        raise RuntimeError("no such thing")

    monkeypatch.setattr(handshake, "run_stub", play)
    monkeypatch.setattr(handshake, "TIMEOUT", 0.3)
    with pytest.raises(RuntimeError, match="no such thing"):
        handshake.run_self_test()


def test_a_scene_that_never_connects_is_told(monkeypatch):
    monkeypatch.setattr(handshake, "TIMEOUT", 0.3)
    monkeypatch.setattr(handshake, "run_stub", lambda port: None)
    with pytest.raises(EnvironmentStartError, match="did not connect"):
        handshake.run_self_test()


def test_protobuf_in_pure_python_is_told(monkeypatch):
    """It does not work with every version; where it does, it is slow."""
    monkeypatch.setenv("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python")
    try:
        told = run_in_subprocess("algorithm.adapters.unity.self_test:run_self_test")
    except SubprocessFailed as error:
        told = str(error)
    assert "unset PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION" in told
    monkeypatch.delenv("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION")
    assert "unset" not in handshake.run_self_test()


def test_what_arrives_is_what_was_sent(monkeypatch):
    says = handshake._make_message
    monkeypatch.setattr(handshake, "_make_message", lambda observed: says(observed / 2))
    with pytest.raises(EnvironmentCrashed, match="was told 0.5 heard 0.25"):
        handshake.run_self_test()
