"""The export of an untrained agent, as the command doctor runs it."""

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from algorithm.distributions.gaussian import GaussianFamily  # noqa: E402
from algorithm.tools.export.export import (
    ExportFailed,  # noqa: E402
    run_round_trip,  # noqa: E402
)


def test_the_file_computes_the_same_as_torch():
    assert "opset 15" in run_round_trip()


def test_a_different_file_is_an_error(monkeypatch):
    monkeypatch.setattr(GaussianFamily, "mode", lambda self, statistics: statistics[:, : self.size] + 0.1)
    with pytest.raises(ExportFailed, match="agent was not exported"):
        run_round_trip()
