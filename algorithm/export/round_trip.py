"""From an agent to a file for Unity and back: whether what an export needs works on this machine."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from algorithm.config.loader import resolve
from algorithm.config.registry import find_class
from algorithm.export.export import export_role, preserve_rng_state
from algorithm.networks.default_network import make_default_blueprint
from algorithm.specs import DEFAULT_ROLE, ActionSpec, ObsSpec, Role


def run_round_trip() -> str:
    """Export an agent that was never trained, with all that every export is held against; what took part in it.

    Raises ExportFailed where its numbers are not those of torch.
    """
    import onnx
    import onnxruntime

    settings = resolve([])
    role = Role(1, {"obs": ObsSpec((3,))}, ActionSpec(2))
    make = find_class("algorithm", settings.base.algorithm)
    with preserve_rng_state(), tempfile.TemporaryDirectory() as folder:
        agent = make(settings.agent, make_default_blueprint(role), role, np.random.default_rng(0))
        agent.policy.eval()
        exported = export_role(agent, DEFAULT_ROLE, role, 0, Path(folder))
    return (
        f"onnx {onnx.__version__} and onnxruntime {onnxruntime.__version__}, opset {exported.opset}, "
        f"within {max(exported.parity, 1e-12):.0e} of torch"
    )
