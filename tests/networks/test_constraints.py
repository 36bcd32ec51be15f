"""Constraints of flat parameters; tests/networks/test_residual.py has those of layers in training."""

from __future__ import annotations

import pytest
import torch

from algorithm.networks import ImpalaResNet
from algorithm.networks.constraints import RowNorm, SpectralNorm, find_constraints, merge_constraints
from algorithm.specs import ObsSpec


def test_each_row_has_the_norm():
    rows = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    parameters = rows.flatten()
    RowNorm(4, 2.5)(parameters)
    torch.testing.assert_close(parameters.view(4, 3), 2.5 * rows / rows.square().sum(1, keepdim=True).sqrt())


@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (64, 64)])
def test_a_spectral_norm_is_at_most_1_and_hardly_below(shape):
    weight = 2 * torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    singular = torch.linalg.matrix_norm(weight, 2)
    parameters = torch.cat((weight.flatten(), torch.full((shape[0],), 7.0)))
    SpectralNorm(*shape)(parameters)
    constrained = parameters[: weight.numel()].view(shape)
    assert 0.97 <= torch.linalg.matrix_norm(constrained, 2) <= 1.0001
    torch.testing.assert_close(constrained * (weight[0, 0] / constrained[0, 0]), weight, rtol=1e-4, atol=1e-5)
    assert (parameters[weight.numel() :] == 7).all()
    small = (weight / (2 * singular)).flatten()
    before = small.clone()
    SpectralNorm(*shape)(small)
    assert torch.equal(small, before)


def test_a_row_of_zeros_stays_finite():
    parameters = torch.zeros(6)
    RowNorm(2, 1.0)(parameters)
    SpectralNorm(2, 3)(parameters)
    assert (parameters == 0).all()


def test_each_convolution_may_have_a_spectral_norm():
    spec = ObsSpec((3, 9, 8), "uint8", high=255.0)
    assert not list(find_constraints(ImpalaResNet((4, 5), 6)(spec)))
    constraints = list(find_constraints(ImpalaResNet((4, 5), 6, spectral_norm=True)(spec)))
    assert len(constraints) == 2 * 5
    for constrain, (weight, bias) in constraints:
        parameters = torch.cat((10 * weight.detach().flatten(), bias.detach()))
        constrain(parameters)
        for matrix in (weight.detach(), parameters[: weight.numel()].view_as(weight)):
            assert 0.97 <= torch.linalg.matrix_norm(matrix.flatten(1), 2) <= 1.0001


def test_merged_constraints_are_those_of_each_layer():
    """Layers at equal and at unequal distances, of other sizes and norms, and with other constraints."""
    torch.manual_seed(0)
    flat = torch.randn(400)
    starts = {RowNorm(4, 1.0): [0, 20, 40, 90, 110, 300], RowNorm(2, 3.0): [60], SpectralNorm(3, 4): [130, 150]}
    layers = [(constrain, slice(start, start + 12)) for constrain, places in starts.items() for start in places]
    layers.append((RowNorm(4, 1.0), slice(320, 336)))
    layers.sort(key=lambda layer: layer[1].start)
    expected = flat.clone()
    for constrain, place in layers:
        constrain(expected[place])
    merged = merge_constraints((constrain, flat[place]) for constrain, place in layers)
    for constrain, parameters in merged:
        constrain(parameters)
    assert torch.equal(flat, expected)
    assert sorted(parameters.numel() // 12 for _, parameters in merged) == [1, 1, 1, 1, 1, 2, 3]
