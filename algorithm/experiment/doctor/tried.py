"""What is only known once it is done, in a process of its own: a handshake, and a round trip through ONNX."""

from __future__ import annotations

from functools import partial

from algorithm.experiment.doctor.apart import ask
from algorithm.experiment.doctor.check import OK, Check, Seen
from algorithm.experiment.doctor.requirements import installed, packaged


def handshake_check() -> Check:
    """With a scene of one agent, over gRPC."""
    return Check("handshake", partial(_with_extra, "unity", "algorithm.adapters.unity.handshake:shake_hands"))


def onnx_check() -> Check:
    """From torch to a file, and back through onnxruntime."""
    return Check("onnx round trip", partial(_with_extra, "onnx", "algorithm.experiment.export.round_trip:round_trip"))


def _with_extra(extra: str, function: str) -> Seen:
    """What a function comes to that needs an extra; not tried where the extra is not there as it should be."""
    state, line = installed(packaged()["extras_require"][extra], f'pip install -e ".[{extra}]"')
    return (OK, ask(function)) if state == OK else (state, line)
