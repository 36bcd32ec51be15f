"""Convolutional encoders: sizes, scales, gradients, and invalid observations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from algorithm.networks import Blueprint, Conv, FlatParameters, ImpalaResNet, NatureCnn
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
    for layer in encoder.layers:
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
