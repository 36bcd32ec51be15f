"""Both ends of the protocol in one process."""

import pytest

pytest.importorskip("mlagents_envs")
from algorithm.adapters.adapter import EnvironmentBroke, EnvironmentFailed  # noqa: E402
from algorithm.adapters.unity import handshake  # noqa: E402


def test_a_tick_is_played():
    assert "mlagents-envs" in handshake.shake_hands()


def test_what_the_scene_raises_is_told(monkeypatch):
    def play(port):
        raise RuntimeError("no such thing")

    monkeypatch.setattr(handshake, "play", play)
    monkeypatch.setattr(handshake, "LIMIT", 0.3)
    with pytest.raises(RuntimeError, match="no such thing"):
        handshake.shake_hands()


def test_a_scene_that_never_connects_is_told(monkeypatch):
    monkeypatch.setattr(handshake, "LIMIT", 0.3)
    monkeypatch.setattr(handshake, "play", lambda port: None)
    with pytest.raises(EnvironmentFailed, match="did not connect"):
        handshake.shake_hands()


def test_what_arrives_is_what_was_sent(monkeypatch):
    says = handshake._says
    monkeypatch.setattr(handshake, "_says", lambda observed: says(observed / 2))
    with pytest.raises(EnvironmentBroke, match="was told 0.5 heard 0.25"):
        handshake.shake_hands()
