"""Both sides of the protocol in one process."""

import pytest

pytest.importorskip("mlagents_envs")
from algorithm.adapters.adapter import EnvironmentCrashed, EnvironmentStartError  # noqa: E402
from algorithm.adapters.unity import self_test  # noqa: E402
from algorithm.tools.doctor.check import SubprocessFailed, run_in_subprocess  # noqa: E402


def test_an_error_of_the_scene_is_reported(monkeypatch):
    def play(port):
        raise RuntimeError("no such thing")

    monkeypatch.setattr(self_test, "run_stub", play)
    monkeypatch.setattr(self_test, "TIMEOUT", 0.3)
    with pytest.raises(RuntimeError, match="no such thing"):
        self_test.run_self_test()


def test_a_scene_that_never_connects_is_reported(monkeypatch):
    monkeypatch.setattr(self_test, "TIMEOUT", 0.3)
    monkeypatch.setattr(self_test, "run_stub", lambda port: None)
    with pytest.raises(EnvironmentStartError, match="did not connect"):
        self_test.run_self_test()


@pytest.mark.slow
def test_protobuf_in_pure_python_is_reported(monkeypatch):
    """Test the report: protobuf in pure Python fails in some versions and is slow in others."""
    monkeypatch.setenv("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python")
    try:
        error_line = run_in_subprocess("algorithm.adapters.unity.self_test:run_self_test")
    except SubprocessFailed as error:
        error_line = str(error)
    assert "unset PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION" in error_line
    monkeypatch.delenv("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION")
    assert "unset" not in self_test.run_self_test()


def test_a_changed_message_is_an_error(monkeypatch):
    make_message = self_test._make_message
    monkeypatch.setattr(self_test, "_make_message", lambda observed: make_message(observed / 2))
    with pytest.raises(EnvironmentCrashed, match="sent the action 0.5, but the scene received 0.25"):
        self_test.run_self_test()
