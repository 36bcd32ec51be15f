"""Normalized observations: statistics and clipping by numpy, the observations that stay as they are, encoders."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from algorithm.auxiliaries import rnd
from algorithm.auxiliaries.rnd import NormalizedObservations
from algorithm.networks import Blueprint, Conv, FrameStack, Mlp, Torso, Vector
from algorithm.networks.encoders import ConvEncoder, VectorEncoder
from algorithm.specs import ACTION_MASK, ObsSpec
from tests.builders import PassThrough

IMAGE = ObsSpec((3, 5, 4), "uint8", high=255.0)


def make(encoder, spec: ObsSpec) -> NormalizedObservations:
    specs = {"obs": spec, ACTION_MASK: ObsSpec((2,), "uint8")}
    return NormalizedObservations(Torso(Blueprint({"*": encoder}, body=Mlp(4)), specs))


@pytest.mark.parametrize(
    ("encoder", "spec"),
    [
        (Vector(), ObsSpec((4,))),
        (Vector(scale=0.5), ObsSpec((4,))),
        (Vector(normalize=True), ObsSpec((2, 2))),
        (Vector(), IMAGE),
        (Conv((4, 2, 1)), IMAGE),
        (FrameStack(3, Conv((4, 2, 1))), IMAGE),
    ],
)
@pytest.mark.parametrize("max_values", [1, 100, 2**20])
def test_statistics_are_those_of_all_collected_rows_and_values_are_clipped(encoder, spec, max_values, monkeypatch):
    monkeypatch.setattr(rnd, "MAX_VALUES", max_values)
    normalizer, rng = make(encoder, spec), np.random.default_rng(0)
    scale = 100 if spec.dtype == "uint8" else 3
    rollouts = [(scale * rng.random((5, 3, *spec.shape))).astype(spec.dtype) for _ in range(3)]
    for obs in rollouts:
        normalizer.observe({"obs": obs})
    rows = np.concatenate([obs[:-1].reshape(-1, *spec.shape) for obs in rollouts]).astype(np.float64)
    obs = rows.copy()
    obs[0] = 255
    expected = np.clip((obs - rows.mean(0)) / rows.std(0), -5, 5)
    found = normalizer({"obs": torch.from_numpy(obs.astype(spec.dtype))})["obs"]
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert (found[0] == 5).any()
    assert found.dtype == torch.float32


@pytest.mark.parametrize(
    ("encoder", "spec"),
    [
        (Vector(normalize=True), ObsSpec((6,), "uint8")),
        (Conv((4, 2, 1)), ObsSpec((3, 5, 4), "uint8")),
        (PassThrough(), IMAGE),
    ],
)
def test_binary_observations_and_those_of_other_encoders_stay_as_they_are(encoder, spec):
    normalizer = make(encoder, spec)
    obs = np.random.default_rng(0).integers(2, size=(4, 3, *spec.shape), dtype=np.uint8)
    normalizer.observe({"obs": obs})
    assert not list(normalizer.buffers())
    rows = torch.from_numpy(obs).flatten(0, 1)
    assert normalizer({"obs": rows})["obs"] is rows
    assert normalizer.make_encoder().encode({"obs": rows}).isfinite().all()


@pytest.mark.parametrize(
    ("encoder", "kind"),
    [
        (Vector(scale=0.5), VectorEncoder),
        (FrameStack(3, Vector(normalize=True)), VectorEncoder),
        (FrameStack(3, Conv((4, 2, 1))), ConvEncoder),
    ],
)
def test_an_encoder_reads_one_row_of_normalized_observations(encoder, kind):
    normalizer = make(encoder, IMAGE)
    torso = normalizer.make_encoder()
    assert type(torso.encoders[0]) is kind
    assert torso.body is None
    assert torso.state_size == 0
    rows = torch.randn(4, 3, 5, 4)
    if kind is VectorEncoder:
        assert torch.equal(torso.encode({"obs": rows}), rows.flatten(1))
    else:
        assert torso.encoders[0].layers[0].high == 1  # normalized pixels are not divided again
