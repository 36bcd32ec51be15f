"""From an agent to a file for Unity and back: whether what an export needs works on this machine."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from algorithm.config.loader import resolve
from algorithm.config.registry import find
from algorithm.export.export import untouched, write
from algorithm.runs.default_network import default_blueprint
from algorithm.specs import AGENT, ActionSpec, ObsSpec, Role


def round_trip() -> str:
    """Export an agent that was never trained, with all that every export is held against; what took part in it.

    Raises ExportFailed where its numbers are not those of torch.
    """
    import onnx
    import onnxruntime

    settings = resolve([])
    role = Role(1, {"obs": ObsSpec((3,))}, ActionSpec(2))
    make = find("algorithm", settings.base.algorithm)
    with untouched(), tempfile.TemporaryDirectory() as folder:
        agent = make(settings.agent, default_blueprint(role), role, np.random.default_rng(0))
        agent.policy.eval()
        exported = write(agent, AGENT, role, 0, Path(folder))
    return (
        f"onnx {onnx.__version__} and onnxruntime {onnxruntime.__version__}, opset {exported.opset}, "
        f"within {max(exported.parity, 1e-12):.0e} of torch"
    )
