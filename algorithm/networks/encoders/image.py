"""Images: convolutional encoders, user-defined or from the literature, and random shifts for learning."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from algorithm.networks.blueprint import Augmentation
from algorithm.networks.constraints import limit_spectral_norm
from algorithm.networks.mlp import ACTIVATIONS, check_activation, check_sizes, make_orthogonal_linear
from algorithm.specs import ObsSpec


@dataclass(frozen=True)
class RandomShift:
    """A factory of an augmentation that shifts images at random: `augmentations={"image": RandomShift(4)}`.

    See `random_shift`. All frames of a FrameStack are shifted together.

    Args:
        pixels: Largest shift in each direction, in pixels; 4 by default, as in the paper for images of 84 x 84
            pixels; at least 1.

    Raises:
        ValueError: `pixels` is not an integer of at least 1; when the augmentation is made: an observation that is not
            an image [channels, rows, columns], or one of at most `pixels` rows or columns.
    """

    pixels: int = 4

    def __post_init__(self) -> None:
        if not isinstance(self.pixels, int) or isinstance(self.pixels, bool) or self.pixels < 1:
            raise ValueError(f"RandomShift has a shift of {self.pixels!r} pixels; it must be an integer, at least 1")

    def __call__(self, spec: ObsSpec) -> Augmentation:
        if len(spec.shape) != 3:
            raise ValueError(
                f"RandomShift shifts images [channels, rows, columns], not an observation {list(spec.shape)}; "
                "name the images in the blueprint's augmentations"
            )
        if min(spec.shape[1:]) <= self.pixels:
            raise ValueError(f"an image {list(spec.shape)} is too small for a shift of up to {self.pixels} pixels")
        return partial(random_shift, pixels=self.pixels)


def random_shift(images: Tensor, pixels: int) -> Tensor:
    """Shift each image by up to `pixels` rows and columns (DrQ, Kostrikov et al. 2021, arXiv 2004.13649).

    The result equals padding by `pixels` on each side with the nearest pixel of the border, then a random crop of the
    original size. The shifts are uniform integers, independent for rows and columns and for each image, from torch's
    default generator of the device, whose state is in each checkpoint. All channels of an image have the same shift.

    Args:
        images: Images [n, channels, rows, columns] of any dtype.
        pixels: Largest shift in each direction, in pixels; 0: return `images`, and draw nothing.

    Returns:
        The shifted images, of the same shape and dtype.
    """
    if not pixels:
        return images
    n, channels, rows, columns = images.shape
    shifts = torch.randint(-pixels, pixels + 1, (2, n, 1), device=images.device)
    row, column = (
        (torch.arange(size, device=images.device) + shift).clamp(0, size - 1)
        for size, shift in zip((rows, columns), shifts, strict=True)
    )
    # One index for each pixel, the same for all channels: a fifth of the time of indexing rows and columns.
    pixel = (row.unsqueeze(2) * columns + column.unsqueeze(1)).flatten(1).unsqueeze(1)
    return images.flatten(2).gather(2, pixel.expand(n, channels, rows * columns)).view_as(images)


GAIN = 2**0.5


class Conv:
    """A factory of convolutions and one linear layer for images: `Conv((32, 8, 4), (64, 4, 2), units=128)`.

    An activation follows each layer. The convolutions have no padding. Images [rows, channels, height, width] of bytes
    are divided by their largest value -> features [rows, units].

    Args:
        layers: (channels, kernel, stride) of each convolution, kernel and stride in pixels; at least one convolution.
        units: Units of the linear layer, 128 by default; None: no linear layer, the features are the last pixels.
        activation: "relu" (default) or "tanh".

    Raises:
        ValueError: An invalid layer; when the encoder is made: an observation that is not an image
            [channels, rows, columns], or an image smaller than a kernel.
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

    def __call__(self, spec: ObsSpec) -> ConvEncoder:
        _, *sides = _image_shape(spec)
        for index, (_, kernel, stride) in enumerate(self.layers, 1):
            if min(sides) < kernel:
                rows, columns = sides
                raise ValueError(
                    f"an image {list(spec.shape)} is too small for {type(self).__name__}: layer {index} has an "
                    f"input of {rows} x {columns} pixels and a kernel of {kernel}"
                )
            sides = [(side - kernel) // stride + 1 for side in sides]
        flat_size = self.layers[-1][0] * sides[0] * sides[1]
        return ConvEncoder(self, spec, flat_size)


class NatureCnn(Conv):
    """A factory of the convolutional network of Mnih et al. (2015, Nature 518): three convolutions, one linear layer.

    The convolutions are (32, 8, 4), (64, 4, 2), (64, 3, 1) as in Conv, with relu. Images [rows, channels, height,
    width] of at least 36 x 36 pixels -> features [rows, units].

    Args:
        units: Units of the linear layer, 512 by default as in the paper.

    Raises:
        ValueError: A size below 1; when the encoder is made: no image, or an image of less than 36 pixels.
    """

    def __init__(self, units: int = 512):
        super().__init__((32, 8, 4), (64, 4, 2), (64, 3, 1), units=units)


class ImpalaResNet:
    """A factory of the residual network of IMPALA (Espeholt et al. 2018, arXiv 1802.01561, Figure 3, right).

    Each stage is a convolution of 3 x 3, a max pooling that halves the image, and two residual blocks; a linear layer
    with relu follows. Images [rows, channels, height, width] -> features [rows, units].

    Args:
        channels: Channels of each stage, (16, 32, 32) by default as in the paper; at least one stage.
        units: Units of the linear layer, 256 by default as in the paper.
        spectral_norm: Whether the weights of each convolution keep a spectral norm of at most 1, as those of Mlp; False
            by default.

    Raises:
        ValueError: No stage, or a size below 1; when the encoder is made: an observation that is not an image.
    """

    def __init__(self, channels: tuple[int, ...] = (16, 32, 32), units: int = 256, *, spectral_norm: bool = False):
        if not channels:
            raise ValueError("ImpalaResNet needs the channels of at least one stage, as in (16, 32, 32)")
        check_sizes("ImpalaResNet", *channels, units)
        self.channels, self.units, self.spectral_norm = tuple(channels), units, spectral_norm

    def __call__(self, spec: ObsSpec) -> ResNetEncoder:
        encoder = ResNetEncoder(_image_shape(spec), self.channels, self.units, spec.high)
        if self.spectral_norm:
            for layer in encoder.modules():
                if isinstance(layer, nn.Conv2d):
                    limit_spectral_norm(layer)
        return encoder


class InputConvolution(nn.Conv2d):
    """The first convolution: of images [rows, C, H, W] of bytes or float32, divided by their largest value `high`."""

    def __init__(self, high: float, inputs: int, outputs: int, kernel: int, stride: int = 1, padding: int = 0):
        super().__init__(inputs, outputs, kernel, stride, padding)
        self.high = high
        _initialize(self)

    def forward(self, obs: Tensor) -> Tensor:
        # Channels last in memory from here to _flatten_pixels: forward and backward of 168 frames of 84x84x4 through
        # NatureCnn take 2/3 of the time of channels first; 336 frames of 10x10x4 through (16, 3, 1) take the same
        # time. The weights are views of the flat parameters and keep their layout. The pixels are permuted as bytes:
        # `stack` takes half the time of `contiguous` and gives one layout for any input. Dividing the weights is
        # cheaper than dividing the pixels.
        pixels = torch.stack(obs.unbind(1), -1).float().permute(0, 3, 1, 2)
        weight = self.weight if self.high == 1 else self.weight / self.high
        return nn.functional.conv2d(pixels, weight, self.bias, self.stride, self.padding)


def _flatten_pixels(pixels: Tensor) -> Tensor:
    """Flatten [rows, C, H, W] -> [rows, H * W * C], in the order in memory."""
    return pixels.permute(0, 2, 3, 1).flatten(1)


class ConvEncoder(nn.Module):
    """The encoder of a Conv: [rows, C, H, W] -> [rows, size]; `flat_size` is the size before the linear layer."""

    def __init__(self, factory: Conv, spec: ObsSpec, flat_size: int):
        super().__init__()
        layers: list[nn.Module] = [InputConvolution(spec.high, spec.shape[0], *factory.layers[0])]
        for (inputs, *_), layer in pairwise(factory.layers):
            layers.append(_make_convolution(inputs, *layer))
        self.layers: Any = nn.ModuleList(layers)
        self.size = factory.units or flat_size
        self.linear: Any = make_orthogonal_linear(flat_size, factory.units, GAIN) if factory.units else None
        self.activate = ACTIVATIONS[factory.activation]()

    def forward(self, obs: Tensor) -> Tensor:
        for layer in self.layers:
            obs = self.activate(layer(obs))
        features = _flatten_pixels(obs)
        return self.activate(self.linear(features)) if self.linear else features


class ResNetEncoder(nn.Module):
    """The encoder of an ImpalaResNet: [rows, C, H, W] -> [rows, size]."""

    def __init__(self, shape: tuple[int, int, int], channels: tuple[int, ...], units: int, high: float):
        super().__init__()
        self.size = units
        in_channels, rows, columns = shape
        stages: list[nn.Module] = []
        for out_channels in channels:
            # No activation before the pooling, since each block begins with one, as in the paper.
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
    """A residual block: x + (relu, convolution, relu, convolution)(x), [rows, C, H, W]."""

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
    """Set orthogonal weights and biases 0."""
    nn.init.orthogonal_(layer.weight, GAIN)
    nn.init.zeros_(layer.get_parameter("bias"))


def _image_shape(spec: ObsSpec) -> tuple[int, int, int]:
    """Return channels, rows and columns of an image. Raises ValueError for any other observation."""
    if len(spec.shape) != 3:
        raise ValueError(
            f"an observation {list(spec.shape)} is not an image [channels, rows, columns]; Vector() encodes any shape"
        )
    channels, rows, columns = spec.shape
    return channels, rows, columns
