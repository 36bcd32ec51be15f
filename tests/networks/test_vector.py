"""Running statistics, and vectors scaled or normalized by those of the collected rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from algorithm.networks import FlatParameters, RunningMoments, Vector
from algorithm.networks.encoders import VectorEncoder
from algorithm.specs import ObsSpec

ROWS = np.array([[0, 10], [2, 10], [4, 10], [10, 10]], np.float32)  # mean 4, std sqrt(14); a constant component


def normalizing(size: int = 2, **settings) -> VectorEncoder:
    return Vector(normalize=True, **settings)(ObsSpec((size,)))


def both(encoder: VectorEncoder, obs: np.ndarray) -> np.ndarray:
    """Return the features of rows, in torch and in numpy."""
    encoded, before = encoder.numpy()(obs), obs.copy()
    np.testing.assert_allclose(encoded, encoder(torch.from_numpy(obs)), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(obs, before)
    assert encoded.dtype == np.float32
    return encoded


def test_rows_in_two_merges_are_normalized_by_the_mean_and_std_of_all():
    encoder = normalizing()
    for part in (ROWS[:1], ROWS[1:]):
        encoder.observe(torch.from_numpy(part))
    expected = (ROWS[:, 0] - ROWS[:, 0].mean()) / ROWS[:, 0].std()
    np.testing.assert_allclose(both(encoder, ROWS), np.stack((expected, np.zeros(4)), -1), rtol=1e-6)
    np.testing.assert_allclose(encoder.transform.moments.std[0].item(), np.sqrt(14), rtol=1e-12)


def test_outliers_are_clipped():
    encoder, wide = normalizing(), normalizing(clip=20.0)
    for one in (encoder, wide):
        one.observe(torch.from_numpy(ROWS))
    far = np.array([[1e6, 16], [-1e6, 3]], np.float32)
    np.testing.assert_array_equal(both(encoder, far), [[5, 5], [-5, -5]])
    np.testing.assert_array_equal(both(wide, far), [[20, 6], [-20, -7]])


def test_the_std_is_one_before_any_row_and_for_a_constant_component():
    encoder = normalizing()
    obs = np.array([[0.3, -2.0], [4.0, 1.0]], np.float32)
    np.testing.assert_array_equal(both(encoder, obs), obs)
    encoder.observe(torch.zeros(0, 2))
    np.testing.assert_array_equal(both(encoder, obs), obs)
    constant = np.full((1, 2), 0.1, np.float32)
    for rows in (3, 40, 7):
        encoder.observe(torch.from_numpy(np.repeat(constant, rows, 0)))
    np.testing.assert_array_equal(both(encoder, constant + 1), constant + 1 - constant)


def test_numpy_and_torch_follow_merges_and_loads():
    encoder, other = normalizing(), normalizing()
    network = torch.nn.Sequential(encoder, torch.nn.Linear(2, 1))
    moments = encoder.transform.moments
    parameters = FlatParameters({"policy": network}, {}, {"obs": moments})
    places = [buffer.data_ptr() for buffer in encoder.buffers()]
    encode, encoded = encoder.numpy(), [ROWS]
    for seed in range(3):
        rows = np.random.default_rng(seed).normal(3, 2, (5, 2)).astype(np.float32)
        encoder.observe(torch.from_numpy(rows))
        encoded.append(encode(ROWS))
        np.testing.assert_allclose(encoded[-1], encoder(torch.from_numpy(ROWS)), rtol=1e-6, atol=1e-6)
        assert not np.allclose(encoded[-1], encoded[-2])
    # As many rows as before: the result must not depend on the count alone.
    other.observe(torch.from_numpy(np.random.default_rng(9).normal(-4, 1, (15, 2)).astype(np.float32)))
    state = parameters.state()
    state["statistics"]["obs"] = torch.cat([buffer.ravel() for buffer in other.transform.moments.buffers()])
    parameters.load(state)
    np.testing.assert_allclose(encode(ROWS), both(other, ROWS), rtol=1e-6)
    assert [buffer.data_ptr() for buffer in encoder.buffers()] == places


SPECS = [ObsSpec((2, 3), "float64"), ObsSpec((2, 3), "uint8", high=255)]


@pytest.mark.parametrize("spec", SPECS, ids=["floats", "bytes"])
def test_any_shape_is_flattened_and_normalized(spec):
    encoder, obs = Vector(normalize=True)(spec), np.random.default_rng(0).normal(50, 9, (50, 2, 3)).astype(spec.dtype)
    encoder.observe(torch.from_numpy(obs))
    encoded = both(encoder, obs)
    assert encoded.shape == (50, 6)
    np.testing.assert_allclose(encoded.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(encoded.std(0), 1, rtol=1e-5)


def test_one_hot_and_binary_observations_are_unchanged_and_have_no_statistics():
    encoder = Vector(normalize=True)(ObsSpec((2,), "uint8"))
    obs = np.array([[0, 1], [1, 1]], np.uint8)
    encoder.observe(torch.from_numpy(obs))
    np.testing.assert_array_equal(both(encoder, obs), obs)
    assert not list(encoder.buffers())


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


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_small_std_is_exact_at_a_large_mean_and_has_no_gradient(dtype):
    values = (1e4 + np.random.default_rng(1).normal(0, 1e-1, 4000)).astype(dtype)
    moments = RunningMoments()
    for part in np.split(values, 400):
        moments.merge(torch.from_numpy(part).requires_grad_())
    assert moments.std.dtype == torch.float64 and not moments.mean.requires_grad
    np.testing.assert_allclose(moments.std, values.astype(float).std(), rtol=1e-8)
