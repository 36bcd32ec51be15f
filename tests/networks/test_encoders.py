"""Encoders of images, one-hot codes and vectors; running statistics."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from algorithm.networks import Blueprint, Conv, FlatParameters, ImpalaResNet, NatureCnn, OneHot, RunningMoments, Vector
from algorithm.networks.encoders import VectorEncoder
from algorithm.specs import ActionSpec, ObsSpec, Role
from tests.builders import make_acer

FRAMES = ObsSpec((4, 84, 84), "uint8", high=255)
SMALL = ObsSpec((3, 10, 12), "uint8", high=255)
ENCODERS = {
    "conv": Conv((8, 3, 1), (6, 4, 2), units=20),
    "flattened": Conv((8, 3, 2), units=None, activation="tanh"),
    "impala": ImpalaResNet((4, 6), units=20),
}
every_encoder = pytest.mark.parametrize("factory", ENCODERS.values(), ids=ENCODERS.keys())


def pixels(spec: ObsSpec, rows: int = 5, seed: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(0, int(spec.high) + 1, (rows, *spec.shape)).astype(spec.dtype))


def by_hand(encoder: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return the features of a Conv by torch's convolutions, in the order of rows, columns, channels."""
    for layer in encoder.layers[::2]:
        x = encoder.activate(nn.functional.conv2d(x, layer.weight, layer.bias, layer.stride))
    x = torch.stack([image.permute(1, 2, 0).flatten() for image in x])
    return encoder.activate(x @ encoder.linear.weight.T + encoder.linear.bias) if encoder.linear else x


@pytest.mark.parametrize("name", ["conv", "flattened"])
def test_a_conv_convolves_pixels_from_0_to_1(name):
    encoder = ENCODERS[name](SMALL)
    images = pixels(SMALL)
    assert encoder.size == {"conv": 20, "flattened": 8 * 4 * 5}[name]
    torch.testing.assert_close(encoder(images), by_hand(encoder, images.float() / 255), rtol=1e-4, atol=1e-5)


@every_encoder
@pytest.mark.parametrize("spec", [SMALL, ObsSpec((1, 9, 9), "uint8"), ObsSpec((2, 9, 11))], ids=str)
def test_sizes_match_the_features_and_gradients_are_finite(factory, spec):
    encoder, images = factory(spec), pixels(spec)
    features = encoder(images)
    assert features.shape == (5, encoder.size) and features.dtype == torch.float32
    features.square().sum().backward()
    for name, parameter in encoder.named_parameters():
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().sum() > 0, name
    torch.testing.assert_close(encoder(images[2:3]), features[2:3].detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("factory", "n_parameters"),
    [
        (NatureCnn(), 4 * 32 * 64 + 32 + 32 * 64 * 16 + 64 + 64 * 64 * 9 + 64 + 3136 * 512 + 512),
        # Three stages of five convolutions of 3 x 3, the image halved to 42, 21 and 11.
        (
            ImpalaResNet(),
            (4 * 16 + 4 * 16 * 16 + 16 * 32 + 9 * 32 * 32) * 9 + 5 * 16 + 10 * 32 + 11 * 11 * 32 * 256 + 256,
        ),
    ],
    ids=["nature", "impala"],
)
def test_networks_of_papers_have_their_number_of_parameters(factory, n_parameters):
    assert sum(parameter.numel() for parameter in factory(FRAMES).parameters()) == n_parameters


@every_encoder
def test_bytes_are_divided_by_the_largest_value_and_bits_are_not(factory):
    shape = (2, 9, 9)
    byte, bit, real = ObsSpec(shape, "uint8", high=255), ObsSpec(shape, "uint8"), ObsSpec(shape)
    encoders = []
    for spec in (byte, bit, real):
        torch.manual_seed(0)
        encoders.append(factory(spec))
    bits = pixels(bit)
    expected = encoders[2](bits.float())
    torch.testing.assert_close(encoders[0](bits * 255), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(encoders[1](bits), expected, rtol=0, atol=0)


@every_encoder
def test_the_memory_layout_of_an_image_changes_no_bit(factory):
    encoder, images = factory(SMALL), pixels(SMALL)
    last = images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    assert last.stride() != images.stride()
    assert torch.equal(encoder(last), encoder(images))
    first = next(module for module in encoder.modules() if isinstance(module, nn.Conv2d))
    assert first(images).is_contiguous(memory_format=torch.channels_last)  # which is faster


def test_observations_are_not_changed():
    images = torch.rand(3, 2, 9, 9)
    before = images.clone()
    Conv((4, 3, 1))(ObsSpec((2, 9, 9), high=2.0))(images)
    assert torch.equal(images, before)


def test_the_smallest_image_of_nature_cnn_has_36_pixels():
    assert NatureCnn(8)(ObsSpec((1, 36, 36), "uint8"))(torch.zeros(2, 1, 36, 36, dtype=torch.uint8)).shape == (2, 8)


def test_acting_and_learning_encode_an_image_equally():
    role = Role(2, {"image": SMALL}, ActionSpec(branches=(3,)))
    agent = make_acer(role, Blueprint(encoders={"*": ENCODERS["conv"]}))
    FlatParameters({"acer": agent.policy}, agent.target_networks, agent.running_statistics())
    images = pixels(SMALL)
    acted, _ = agent.policy.act({"image": images.numpy()}, np.zeros((5, 0), np.float32))
    learned = agent.policy({"image": images}, torch.zeros(5, 0))[0].detach().numpy()
    np.testing.assert_array_equal(acted, learned)


VIEW = ObsSpec((3, 2, 2), "uint8", high=255.0)


def encode(factory, spec, obs):
    """Return the features of observations, which are the same in torch and in numpy."""
    encoder = factory(spec)
    encoded = encoder(torch.from_numpy(obs)).numpy()
    np.testing.assert_array_equal(encoder.numpy()(obs), encoded)
    assert encoded.dtype == encoder.numpy()(obs).dtype == np.float32
    assert encoded.shape == (len(obs), encoder.size)
    return encoded


@pytest.mark.parametrize("dtype", ["uint8", "float32", "int64"])
def test_every_cell_has_a_one_for_the_code_of_each_channel(dtype):
    n_values, rng = (4, 1, 3), np.random.default_rng(0)
    obs = np.stack([rng.integers(count, size=(5, 2, 2)) for count in n_values], 1).astype(dtype)
    expected = np.concatenate([obs[:, channel] == code for channel, n in enumerate(n_values) for code in range(n)], 1)
    encoded = encode(OneHot(*n_values), VIEW, obs)
    np.testing.assert_array_equal(encoded, expected.reshape(5, -1))
    np.testing.assert_array_equal(encoded.sum(1), 3 * 4)


def test_a_code_without_a_value_is_encoded_as_zeros():
    encoded = encode(OneHot(2), ObsSpec((1,), "uint8"), np.array([[0], [1], [2], [255]], np.uint8))
    np.testing.assert_array_equal(encoded, [[1, 0], [0, 1], [0, 0], [0, 0]])


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
