from __future__ import annotations

import numpy as np
import pytest
import torch

from algorithm.networks import RunningMoments


@pytest.mark.parametrize("shape", [(), (3,), (2, 4)], ids=str)
@pytest.mark.parametrize("sizes", [(1000,), (1, 1, 1, 1), (5, 0, 300, 1, 2)], ids=str)
def test_merging_in_parts_gives_the_mean_and_standard_deviation_of_all(shape, sizes):
    rng = np.random.default_rng(0)
    parts = [rng.normal(3, 2, (size, *shape)) for size in sizes]
    moments = RunningMoments(*shape)
    for part in parts:
        moments.merge(torch.from_numpy(part))
    values = np.concatenate(parts)
    assert moments.count == len(values)
    np.testing.assert_allclose(moments.mean, values.mean(0), rtol=1e-12)
    np.testing.assert_allclose(moments.std, values.std(0), rtol=1e-12)


def test_a_small_std_is_exact_at_a_large_mean():
    values = 1e6 + np.random.default_rng(1).normal(0, 1e-2, 4000)
    moments = RunningMoments()
    for part in np.split(values, 400):
        moments.merge(torch.from_numpy(part))
    np.testing.assert_allclose(moments.std, values.std(), rtol=1e-6)


def test_float32_values_are_summed_in_float64():
    values = np.random.default_rng(2).normal(100, 1e-1, 5000).astype(np.float32)
    moments = RunningMoments()
    moments.merge(torch.from_numpy(values))
    assert moments.std.dtype == torch.float64
    np.testing.assert_allclose(moments.std, values.astype(float).std(), rtol=1e-10)


def test_the_std_is_one_while_all_values_are_the_same():
    moments = RunningMoments(2)
    assert moments.std.tolist() == [1, 1]
    moments.merge(torch.tensor([[5.0, -7.0]]))
    assert moments.std.tolist() == [1, 1]
    moments.merge(torch.tensor([[9.0, -7.0]]))
    assert moments.std.tolist() == [2, 1]


def test_statistics_have_no_gradient():
    moments = RunningMoments()
    moments.merge(torch.ones(3, requires_grad=True))
    assert not moments.mean.requires_grad
    assert not list(moments.parameters())
