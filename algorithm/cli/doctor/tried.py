"""What is only known once it is done, in a process of its own: a handshake, and a round trip through ONNX."""

from __future__ import annotations

from algorithm.cli.doctor.check import OK, Check, Seen
from algorithm.cli.doctor.requirements import installed, packaged
from algorithm.cli.doctor.subprocess_probe import ask


def handshake_check() -> Check:
    """With a scene of one agent, over gRPC."""
    return Check("handshake", lambda: (OK, ask("algorithm.adapters.unity.self_test:shake_hands")))


def onnx_check() -> Check:
    """From torch to a file, and back through onnxruntime."""
    return Check("onnx round trip", _round_trip)


def _round_trip() -> Seen:
    """Try it if the extra onnx is installed as it should be."""
    state, line = installed(packaged()["extras_require"]["onnx"], 'pip install -e ".[onnx]"')
    return (OK, ask("algorithm.export.round_trip:round_trip")) if state == OK else (state, line)
