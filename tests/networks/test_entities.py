"""The encoder of entities: rows in any order, of which some are absent."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
import torch

from algorithm.networks import Entities, FrameStack
from algorithm.networks.default_network import make_default_blueprint, make_nn_file
from algorithm.specs import ActionSpec, ObsSpec, Role
from tests.builders import perturb

SPEC = ObsSpec((5, 3), rows=5)


def encoder(layers=2):
    torch.manual_seed(0)
    return perturb(Entities(8, heads=2, layers=layers)(SPEC))


def rows(present: int, seed=0) -> torch.Tensor:
    """Return an observation [1, 5, 3] whose first rows are present."""
    obs = torch.randn(1, 5, 3, generator=torch.Generator().manual_seed(seed))
    obs[:, present:] = 0
    return obs


@pytest.mark.parametrize("present", [1, 3, 5])
def test_the_features_do_not_depend_on_order_and_place_of_the_rows(present):
    obs = rows(present)
    expected = encoder()(obs)
    for seed in range(3):
        order = torch.randperm(5, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(encoder()(obs[:, order]), expected)
    torch.testing.assert_close(encoder()(obs.flatten(1)), expected)  # as Unity's sensors are stored


def test_absent_rows_have_no_effect_and_no_row_is_zero():
    narrow = perturb_like(Entities(8, heads=2, layers=2)(ObsSpec((2, 3), rows=2)), encoder())
    torch.testing.assert_close(narrow(rows(2)[:, :2]), encoder()(rows(2)))
    assert not encoder()(rows(0)).any()
    batch = torch.cat([rows(0), rows(4), rows(2)])
    torch.testing.assert_close(encoder()(batch)[1:2], encoder()(rows(4)))


def perturb_like(module, other):
    module.load_state_dict(other.state_dict())
    return module


def test_a_layer_is_attention_among_present_rows():
    """The same in plain numpy, row by row."""
    module, obs = encoder(layers=1), rows(3)
    (layer,) = module.layers
    state = {name: value.detach().numpy().astype(float) for name, value in module.state_dict().items()}
    x = np.maximum(obs[0, :3].numpy() @ state["embed.weight"].T + state["embed.bias"], 0)

    def norm(values, number):
        weight, bias = state[f"layers.0.norms.{number}.weight"], state[f"layers.0.norms.{number}.bias"]
        return (values - values.mean(-1, keepdims=True)) / np.sqrt(values.var(-1, keepdims=True) + 1e-5) * weight + bias

    projected = norm(x, 0) @ state["layers.0.project.weight"].T + state["layers.0.project.bias"]
    q, k, v = np.split(projected, 3, -1)
    mixed = np.zeros_like(x)
    for head in (slice(0, 4), slice(4, 8)):
        for row in range(3):
            scores = np.exp([q[row, head] @ k[other, head] / sqrt(4) for other in range(3)])
            mixed[row, head] = (scores[:, None] * v[:, head]).sum(0) / scores.sum()
    x = x + mixed @ state["layers.0.output.weight"].T + state["layers.0.output.bias"]
    x = x + np.maximum(norm(x, 1) @ state["layers.0.hidden.weight"].T + state["layers.0.hidden.bias"], 0)
    x = np.maximum(x, 0)
    expected = np.concatenate((x.mean(0), x.max(0)))
    np.testing.assert_allclose(module(obs)[0].detach().numpy(), expected, rtol=1e-5, atol=1e-6)
    assert layer.heads == 2


def test_frames_of_entities_are_further_rows():
    stacked = FrameStack(2, Entities(8, heads=2))(ObsSpec((6,), env_shape=(2, 3), rows=2))
    assert stacked.encoder.shape == (4, 3)


def test_the_default_network_attends_to_entities():
    role = Role(1, {"units": SPEC, "speed": ObsSpec((2,))}, ActionSpec(branches=(2,)))
    text = make_nn_file(role)
    assert text.startswith('"""Attention among entities, vectors for other observations; hidden layers."""')
    assert '"units": Entities(),' in text and "import Blueprint, Entities, Vector, make_layers" in text
    assert isinstance(make_default_blueprint(role).encoders["units"], Entities)
