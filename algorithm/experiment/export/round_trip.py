"""From torch to an ONNX file and back: whether what an export needs works on this machine."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch

TOLERANCE = 1e-4
OPSET = 15
NAMES = ("obs_0", "continuous_actions")


class RoundTripFailed(Exception):
    """The file says something else than the network it was made of."""


def round_trip() -> str:
    """Export a tiny network, check the file, and run it; what took part in it.

    Raises RoundTripFailed where its numbers are not those of torch.
    """
    import onnx
    import onnxruntime

    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).eval()
    obs = torch.randn(4, 3)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        _write(network, obs[:1], path)
        onnx.checker.check_model(str(path), full_check=True)
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        (found,) = session.run(None, {NAMES[0]: obs.numpy()})
    with torch.no_grad():
        error = float(np.abs(found - network(obs).numpy()).max())
    if not error <= TOLERANCE:
        raise RoundTripFailed(f"onnxruntime computes what is {error:.2g} away from torch, more than {TOLERANCE:g}")
    return (
        f"onnx {onnx.__version__} and onnxruntime {onnxruntime.__version__}, opset {OPSET}, within {error:.0e} of torch"
    )


def _write(network: torch.nn.Module, obs: torch.Tensor, path: Path) -> None:
    """With the exporter that Unity's opsets need, which torch calls deprecated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.onnx.export(
            network,
            (obs,),
            str(path),
            dynamo=False,
            opset_version=OPSET,
            input_names=NAMES[:1],
            output_names=NAMES[1:],
            dynamic_axes=dict.fromkeys(NAMES, {0: "batch"}),
        )
