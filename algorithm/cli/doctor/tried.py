"""What is only known once it is done, in a process of its own: a handshake, and a round trip through ONNX."""

from __future__ import annotations

from algorithm.cli.doctor.check import OK, Check, Outcome
from algorithm.cli.doctor.requirements import check_installed, read_setup
from algorithm.cli.doctor.subprocess_probe import run_in_subprocess


def make_self_test_check() -> Check:
    """With a scene of one agent, over gRPC."""
    return Check("handshake", lambda: (OK, run_in_subprocess("algorithm.adapters.unity.self_test:run_self_test")))


def make_onnx_check() -> Check:
    """From torch to a file, and back through onnxruntime."""
    return Check("onnx round trip", _check_round_trip)


def _check_round_trip() -> Outcome:
    """Try it if the extra onnx is installed as it should be."""
    state, line = check_installed(read_setup()["extras_require"]["onnx"], 'pip install -e ".[onnx]"')
    return (OK, run_in_subprocess("algorithm.export.run_round_trip:run_round_trip")) if state == OK else (state, line)
