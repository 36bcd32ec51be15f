"""A tiny network to a file and back."""

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
import torch  # noqa: E402

from algorithm.experiment.export import round_trip  # noqa: E402


def test_the_file_computes_what_torch_does():
    assert "opset 15" in round_trip.round_trip()


def test_another_file_is_told(monkeypatch):
    write = round_trip._write
    monkeypatch.setattr(
        round_trip, "_write", lambda network, obs, path: write(torch.nn.Sequential(network, torch.nn.Tanh()), obs, path)
    )
    with pytest.raises(round_trip.RoundTripFailed, match="away from torch"):
        round_trip.round_trip()
