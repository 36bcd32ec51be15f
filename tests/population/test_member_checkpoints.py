"""The distribution of the weights of elites, some of which cannot be used."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from algorithm.checkpointing.manifest import CheckpointError
from algorithm.population.exchange import WeightDistribution


class FakeCheckpoint:
    """A checkpoint with one role, whose weights all have one value, but for the first, which is 0."""

    roles = ("agent",)

    def __init__(self, value: float):
        self.value = value

    def weights(self, role):
        if not np.isfinite(self.value):
            raise CheckpointError("weights.pt holds NaN or infinity")
        state = torch.full((2,), self.value)
        first = torch.tensor([0.0, self.value])
        return {"parameters": {"a": first, "b": state}, "target_networks": {"t": state}, "statistics": {"s": state}}


def fit(*values: float, log=print) -> WeightDistribution | None:
    return WeightDistribution.fit([FakeCheckpoint(value) for value in values], log)


def test_the_distribution_over_elites_without_a_damaged_one():
    lines: list[str] = []
    fitted = fit(float("nan"), 1.0, 2.0, log=lines.append)
    assert fitted is not None
    np.testing.assert_allclose(fitted.mean, [0.0, 1.5, 1.5, 1.5])
    np.testing.assert_allclose(fitted.std, [1e-4, 0.5, 0.5, 0.5])  # not below the lower limit
    assert lines == ["weights.pt holds NaN or infinity: this elite is skipped"]
    drawn = fitted.draw(np.random.default_rng(0))["agent"]
    assert drawn["statistics"]["s"].tolist() == [1.0, 1.0]  # those of the best elite that can be used
    assert "target_networks" not in drawn and [len(drawn["parameters"][name]) for name in "ab"] == [2, 2]
    assert fit(0.0, 8.0).std.max() == 1  # the upper limit


def test_draws():
    fitted = fit(0.0, 1.0)
    one, same, other = (fitted.draw(np.random.default_rng(seed))["agent"]["parameters"]["b"] for seed in (3, 3, 4))
    assert one.equal(same) and (one != other).all() and one.dtype == torch.float32
    many = WeightDistribution(
        mean=np.full(4000, 1.0), std=np.full(4000, 0.5), template={"agent": {"parameters": {"a": torch.zeros(4000)}}}
    ).draw(np.random.default_rng(0))["agent"]["parameters"]["a"]
    assert abs(many.mean() - 1.0) < 0.05 and abs(many.std() - 0.5) < 0.05


def test_one_elite_that_can_be_used_is_not_enough():
    assert fit(float("nan"), 1.0) is None


class Code:
    """An object that creates a folder when it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("executed",)


@pytest.mark.parametrize("harm", ["truncated", "no archive", "code"])
def test_a_file_that_cannot_be_used_is_no_distribution(harm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "distribution.pt"
    fit(1.0, 3.0).save(path, 4)
    assert WeightDistribution.load(path, 4).mean.tolist() == [0.0, 2.0, 2.0, 2.0]
    assert WeightDistribution.load(path, 3) is None
    if harm == "code":
        torch.save({"interval": 4, "mean": Code()}, path)
    else:
        path.write_bytes(path.read_bytes()[:100] if harm == "truncated" else b"mean")
    assert WeightDistribution.load(path, 4) is None
    assert not (tmp_path / "executed").exists()
