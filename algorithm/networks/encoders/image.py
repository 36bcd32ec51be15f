"""Images through convolutions: a network of one's own, or one that is known from the literature."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from algorithm.networks.mlp import ACTIVATIONS, check_activation, check_sizes, make_orthogonal_linear
from algorithm.specs import ObsSpec

GAIN = 2**0.5


class Conv:
    """Factory of convolutions and one linear layer: `Conv((32, 8, 4), (64, 4, 2), units=128)`.

    A layer is (channels, kernel, stride), without padding; the activation stands behind every layer. Without `units`
    (None) the last layer's numbers are the features.

    Raises ValueError for what is no layer; the encoder, for an observation that is no image, or is too small.
    """

    def __init__(self, *layers: tuple[int, int, int], units: int | None = 128, activation: str = "relu"):
        if not layers:
            raise ValueError("Conv needs at least one layer, as in Conv((16, 3, 1))")
        for layer in layers:
            is_valid = isinstance(layer, tuple) and all(isinstance(number, int) and number > 0 for number in layer)
            if not is_valid or len(layer) != 3:
                raise ValueError(
                    f"Conv has the layer {layer!r}; a layer is (channels, kernel, stride), as in (16, 3, 1)"
                )
        if units is not None:
            check_sizes(type(self).__name__, units)
        self.layers, self.units, self.activation = layers, units, check_activation(activation)

    def __call__(self, spec: ObsSpec) -> nn.Module:
        channels, *sides = _image_shape(spec)
        for index, (_, kernel, stride) in enumerate(self.layers, 1):
            if min(sides) < kernel:
                rows, columns = sides
                raise ValueError(
                    f"an image {list(spec.shape)} is too small for {type(self).__name__}: layer {index} sees {rows} x "
                    f"{columns} pixels and has a kernel of {kernel}"
                )
            sides = [(side - kernel) // stride + 1 for side in sides]
        flat_size = self.layers[-1][0] * sides[0] * sides[1]
        return ConvEncoder(channels, self.layers, flat_size, self.units, self.activation, spec.high)


class NatureCnn(Conv):
    """Factory of the network of Mnih et al. (2015): three convolutions, for images of 36 pixels and more."""

    def __init__(self, units: int = 512):
        super().__init__((32, 8, 4), (64, 4, 2), (64, 3, 1), units=units)


class ImpalaResNet:
    """Factory of the large network of Espeholt et al. (2018): for each of `channels` a convolution, pooling that
    halves the image, and two residual blocks.

    Raises ValueError for no channels; the encoder, for an observation that is no image.
    """

    def __init__(self, channels: tuple[int, ...] = (16, 32, 32), units: int = 256):
        if not channels:
            raise ValueError("ImpalaResNet needs the channels of at least one stage, as in (16, 32, 32)")
        check_sizes("ImpalaResNet", *channels, units)
        self.channels, self.units = tuple(channels), units

    def __call__(self, spec: ObsSpec) -> nn.Module:
        return ResNetEncoder(_image_shape(spec), self.channels, self.units, spec.high)


class InputConvolution(nn.Conv2d):
    """A convolution of images [rows, C, H, W] of bytes or float32, divided by `high`."""

    def __init__(self, high: float, inputs: int, outputs: int, kernel: int, stride: int = 1, padding: int = 0):
        super().__init__(inputs, outputs, kernel, stride, padding)
        self.high = high
        _initialize(self)

    def forward(self, obs: Tensor) -> Tensor:
        # The channels of a pixel lie side by side from here to the flattening: forward and backward of 168 frames of
        # 84x84x4 through NatureCnn take 2/3 of the time that [C, H, W] takes, 336 of 10x10x4 through (16, 3, 1) no
        # more. The weights, views on the flat parameters, stay as they lie. Bytes are turned while they are bytes (by
        # `stack`: half the time of `contiguous`, and one layout however they came), and the few weights are divided
        # instead of them.
        pixels = torch.stack(obs.unbind(1), -1).float().permute(0, 3, 1, 2)
        weight = self.weight if self.high == 1 else self.weight / self.high
        return nn.functional.conv2d(pixels, weight, self.bias, self.stride, self.padding)


def _flatten_pixels(pixels: Tensor) -> Tensor:
    """[rows, C, H, W] -> [rows, H * W * C]: in the order in which they lie."""
    return pixels.permute(0, 2, 3, 1).flatten(1)


class ConvEncoder(nn.Module):
    """[rows, C, H, W] -> [rows, size]: the `layers` of a Conv, `numbers` of which go through a linear layer."""

    def __init__(
        self,
        channels: int,
        layers: tuple[tuple[int, int, int], ...],
        flat_size: int,
        units: int | None,
        activation: str,
        high: float,
    ):
        super().__init__()
        self.size = units or flat_size
        first, *others = layers
        in_channels = [layer[0] for layer in layers]
        self.layers: Any = nn.ModuleList(
            [
                InputConvolution(high, channels, *first),
                *(_make_convolution(inputs, *layer) for inputs, layer in zip(in_channels, others, strict=False)),
            ]
        )
        self.linear: Any = make_orthogonal_linear(flat_size, units, GAIN) if units else None
        self.activate = ACTIVATIONS[activation][0]

    def forward(self, obs: Tensor) -> Tensor:
        for layer in self.layers:
            obs = self.activate(layer(obs))
        features = _flatten_pixels(obs)
        return self.activate(self.linear(features)) if self.linear else features


class ResNetEncoder(nn.Module):
    """[rows, C, H, W] -> [rows, size]"""

    def __init__(self, shape: tuple[int, int, int], channels: tuple[int, ...], units: int, high: float):
        super().__init__()
        self.size = units
        in_channels, rows, columns = shape
        stages: list[nn.Module] = []
        for out_channels in channels:
            # No activation before the pooling: the blocks begin with theirs, as in the paper.
            layer = (
                _make_convolution(in_channels, out_channels, 3, padding=1)
                if stages
                else InputConvolution(high, in_channels, out_channels, 3, padding=1)
            )
            stages += [layer, nn.MaxPool2d(3, 2, padding=1), ResidualBlock(out_channels), ResidualBlock(out_channels)]
            in_channels, rows, columns = out_channels, (rows + 1) // 2, (columns + 1) // 2
        self.stages = nn.Sequential(*stages, nn.ReLU())
        self.linear = make_orthogonal_linear(in_channels * rows * columns, units, GAIN)

    def forward(self, obs: Tensor) -> Tensor:
        return torch.relu(self.linear(_flatten_pixels(self.stages(obs))))


class ResidualBlock(nn.Module):
    """[rows, C, H, W] -> the same shape: what two convolutions make of it is added to it."""

    def __init__(self, channels: int):
        super().__init__()
        layers = (_make_convolution(channels, channels, 3, padding=1) for _ in range(2))
        self.residual = nn.Sequential(*(part for layer in layers for part in (nn.ReLU(), layer)))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.residual(x)


def _make_convolution(inputs: int, outputs: int, kernel: int, stride: int = 1, padding: int = 0) -> nn.Conv2d:
    layer = nn.Conv2d(inputs, outputs, kernel, stride, padding)
    _initialize(layer)
    return layer


def _initialize(layer: nn.Conv2d) -> None:
    """Orthogonal weights and no bias."""
    nn.init.orthogonal_(layer.weight, GAIN)
    nn.init.zeros_(layer.get_parameter("bias"))


def _image_shape(spec: ObsSpec) -> tuple[int, int, int]:
    """Channels, rows, columns. Raises ValueError for any other shape."""
    if len(spec.shape) != 3:
        raise ValueError(
            f"an observation {list(spec.shape)} is no image [channels, rows, columns]; Vector() reads any shape"
        )
    channels, rows, columns = spec.shape
    return channels, rows, columns
