"""The distribution of the weights of elites, some of which cannot be used."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from algorithm.checkpointing.manifest import CheckpointError
from algorithm.population.member_checkpoints import WeightDistribution


class FakeCheckpoint:
    """A checkpoint with one role, whose weights all have one value."""

    roles = ("agent",)

    def __init__(self, value: float):
        self.value = value

    def weights(self, role):
        if not np.isfinite(self.value):
            raise CheckpointError("weights.pt holds NaN or infinity")
        state = torch.full((2,), self.value)
        return {"parameters": {"a": state, "b": state}, "target_networks": {"t": state}, "statistics": {"s": state}}


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_elite_with_weights_that_are_not_finite_is_skipped(bad):
    lines: list[str] = []
    fitted = WeightDistribution.fit([FakeCheckpoint(value) for value in (bad, 1.0, 3.0)], lines.append)
    assert fitted is not None
    np.testing.assert_allclose(fitted.mean, [2.0] * 4)
    np.testing.assert_allclose(fitted.std, [1.0] * 4)
    assert lines == ["weights.pt holds NaN or infinity: this elite is skipped"]
    drawn = fitted.draw(np.random.default_rng(0))["agent"]
    assert drawn["statistics"]["s"].tolist() == [1.0, 1.0]  # those of the best elite that can be used
    assert "target_networks" not in drawn and [len(drawn["parameters"][name]) for name in "ab"] == [2, 2]


def test_one_elite_that_can_be_used_is_not_enough():
    assert WeightDistribution.fit([FakeCheckpoint(float("nan")), FakeCheckpoint(1.0)], lambda line: None) is None


class Code:
    """An object that creates a folder when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("executed",)


@pytest.mark.parametrize("harm", ["truncated", "no archive", "code"])
def test_a_file_that_cannot_be_used_is_no_distribution(harm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "distribution.pt"
    fitted = WeightDistribution.fit([FakeCheckpoint(1.0), FakeCheckpoint(3.0)], print)
    fitted.save(path, 4)
    assert WeightDistribution.load(path, 4).mean.tolist() == [2.0] * 4
    assert WeightDistribution.load(path, 3) is None
    if harm == "code":
        torch.save({"interval": 4, "mean": Code()}, path)
    else:
        path.write_bytes(path.read_bytes()[:100] if harm == "truncated" else b"mean")
    assert WeightDistribution.load(path, 4) is None
    assert not (tmp_path / "executed").exists()
