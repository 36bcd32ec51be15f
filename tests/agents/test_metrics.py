"""Metrics that agents share."""

import numpy as np
import pytest
import torch

from algorithm.agents.metrics import compute_explained_variance
from algorithm.agents.rows import mean_weights
from tests.oracles import explain_variance


def explained(valid, target, value) -> float:
    weights = mean_weights(valid, torch.ones(valid.shape[1], dtype=target.dtype))
    return compute_explained_variance(weights, target, value).item()


def test_the_explained_variance_is_that_of_valid_rows():
    generator = torch.Generator().manual_seed(0)
    target, noise = torch.randn(2, 6, 4, generator=generator).double()
    valid = torch.rand(6, 4, generator=generator) < 0.7
    value = 3 * target + noise + 5
    expected = explain_variance(target[valid].numpy(), value[valid].numpy())
    assert explained(valid, target, value) == pytest.approx(expected)
    assert expected < 0


@pytest.mark.parametrize(
    ("value", "expected"), [([1.0, 2, 3, 4], 1.0), ([2.5] * 4, 0.0), ([11.0, 12, 13, 14], 1.0), ([4.0, 3, 2, 1], -3.0)]
)
def test_known_explained_variances(value, expected):
    """Exact values, constant values, values with a constant error, and values of the opposite order."""
    target, value = torch.tensor([[1.0, 2, 3, 4]]), torch.tensor([value])
    assert explained(torch.ones(1, 4, dtype=torch.bool), target, value) == pytest.approx(expected)


def test_targets_that_do_not_vary_have_no_variance_to_explain():
    """Their variance is 0, or above it by the rounding of their mean."""
    for target in (np.full((7, 3), 0.1), np.full((7, 3), 1e6 / 3), np.zeros((7, 3))):
        target = torch.from_numpy(target.astype(np.float32))
        assert explained(torch.ones(7, 3, dtype=torch.bool), target, torch.randn(7, 3)) == 0.0


def test_without_valid_rows_it_is_0():
    target = torch.randn(3, 2)
    assert explained(torch.zeros(3, 2, dtype=torch.bool), target, target) == 0.0
