"""Encoders of observations: vectors, one-hot codes and images; and random shifts of images for learning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.networks.constraints import limit_spectral_norm
from algorithm.networks.layers import ACTIVATIONS, check_activation, check_sizes, make_orthogonal_linear
from algorithm.networks.modules import NumpyFunction
from algorithm.specs import ObsSpec

GAIN = 2**0.5  # of the initial weights of images' encoders


class RunningMoments(nn.Module):
    """Count, mean and sum of squared deviations of all rows so far (parallel merge, Chan et al. 1983).

    Args:
        shape: The shape of a row; none for scalars.
    """

    count: Tensor
    mean: Tensor
    squared_deviations: Tensor

    def __init__(self, *shape: int):
        super().__init__()
        for name in ("mean", "squared_deviations"):
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def merge(self, values: Tensor) -> None:
        """Include rows of values [n, *shape]."""
        if not len(values):
            return
        values = values.to(self.mean)
        mean = values.mean(0)
        shift = mean - self.mean
        total = self.count + len(values)
        self.squared_deviations += (values - mean).square().sum(0) + shift.square() * self.count * len(values) / total
        self.mean += shift * len(values) / total
        self.count.copy_(total)

    @property
    def std(self) -> Tensor:
        """Standard deviation [*shape]; 1 for a component that has been constant so far, so that division is safe."""
        variance = self.squared_deviations / self.count.clamp(min=1)
        return torch.where(variance > 0, variance.sqrt(), 1.0)

    def numpy(self) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
        """Return a function that computes mean and `std` in float32 from views of the buffers at every call."""
        count, mean, deviations = self.count.numpy(), self.mean.numpy(), self.squared_deviations.numpy()

        def moments() -> tuple[np.ndarray, np.ndarray]:
            variance = deviations / max(count, 1)
            std = np.where(variance > 0, np.sqrt(variance), 1)
            return mean.astype(np.float32), std.astype(np.float32)

        return moments


class Normalizer(nn.Module):
    """A module that maps rows [n, size] to (x - mean) / std of all observed rows, clipped to [-clip, clip].

    The std of a component is 1 before any row is observed and as long as the component is constant.
    """

    def __init__(self, size: int, clip: float):
        super().__init__()
        self.moments = RunningMoments(size)
        self.clip = clip

    def forward(self, x: Tensor) -> Tensor:
        moments = self.moments
        return ((x - moments.mean.float()) / moments.std.float()).clamp(-self.clip, self.clip)

    def numpy(self) -> NumpyFunction:
        moments, clip = self.moments.numpy(), self.clip

        def normalize(x: np.ndarray) -> np.ndarray:
            mean, std = moments()
            x = (x - mean) / std
            return np.minimum(np.maximum(x, -clip, out=x), clip, out=x)  # np.clip takes twice as long on short rows

        return normalize


@dataclass(frozen=True)
class Vector:
    """A factory of an encoder without layers: the observation flattened, as float32, scaled or normalized.

    Networks learn best from values of about 1. [rows, *shape] of any dtype -> [rows, size of the observation].

    Args:
        scale: Factor of all values, or a tuple with a factor for each; 1 by default: unchanged.
        normalize: Whether to map values to (x - mean) / std over all rows collected so far; False by default. Binary
            and one-hot observations are never normalized.
        clip: Bound of the absolute value of a normalized value, in standard deviations; 5 by default.

    Raises:
        ValueError: Both `scale` and `normalize`, or a `clip` that is not above 0; when the encoder is made: the number
            of scales is not the size of the observation.
    """

    scale: float | tuple[float, ...] = 1.0
    normalize: bool = False
    clip: float = 5.0

    def __post_init__(self) -> None:
        if self.normalize and self.scale != 1:
            raise ValueError(f"Vector has a scale {self.scale} and normalize: give one or the other")
        if not self.clip > 0:
            raise ValueError(f"Vector's clip is {self.clip}; it must be above 0")

    def __call__(self, spec: ObsSpec) -> VectorEncoder:
        size = prod(spec.shape)
        if isinstance(self.scale, tuple) and len(self.scale) != size:
            raise ValueError(f"Vector has {len(self.scale)} scales for an observation of {size} values")
        if self.normalize and (spec.dtype != "uint8" or spec.high > 1):
            return VectorEncoder(size, Normalizer(size, self.clip))
        return VectorEncoder(size, None if self.scale == 1 else Scale(self.scale))


class VectorEncoder(nn.Module):
    """The encoder of a Vector: [rows, *shape] of any dtype -> [rows, size] float32, transformed if so set."""

    def __init__(self, size: int, transform: Scale | Normalizer | None):
        super().__init__()
        self.size = size
        self.transform: Any = transform

    def forward(self, obs: Tensor) -> Tensor:
        vector = obs.flatten(1).float()
        return vector if self.transform is None else self.transform(vector)

    def numpy(self) -> NumpyFunction:
        size, transform = self.size, None if self.transform is None else self.transform.numpy()

        def encode(obs: np.ndarray) -> np.ndarray:
            vector = obs.reshape(len(obs), size).astype(np.float32, copy=False)
            return vector if transform is None else transform(vector)

        return encode

    def observe(self, obs: Tensor) -> None:
        """Update the running statistics, if any, with collected rows [n, *shape]."""
        if isinstance(self.transform, Normalizer):
            self.transform.moments.merge(obs.flatten(1))


class Scale(nn.Module):
    """A module that multiplies rows [n, size] by a constant, which is neither learned nor saved."""

    def __init__(self, scale: float | tuple[float, ...]):
        super().__init__()
        self.scale = torch.tensor(scale)

    def forward(self, vector: Tensor) -> Tensor:
        self.scale = self.scale.to(vector.device)
        return vector * self.scale

    def numpy(self) -> NumpyFunction:
        scale = self.scale.cpu().numpy()
        return lambda vector: vector * scale


class OneHot:
    """A factory of an encoder without layers: integer codes as one-hot vectors, for codes that have no order.

    `OneHot(11, 6, 3)` encodes a view of MiniGrid, whose cells have an object, a color and a state. A code
    without a value is encoded as zeros. [rows, channels, ...] of any dtype -> [rows, size], where size is
    the sum of `n_values` times the number of cells.

    Args:
        n_values: Number of values of the codes in each channel, which is an index of the observation's first axis.

    Raises:
        ValueError: No channel, or a number below 1; when the encoder is made: another number of channels.
    """

    def __init__(self, *n_values: int):
        if not n_values:
            raise ValueError("OneHot needs the number of values of at least one channel, as in OneHot(11, 6, 3)")
        check_sizes("OneHot", *n_values)
        self.n_values = n_values

    def __call__(self, spec: ObsSpec) -> OneHotEncoder:
        channels, *cells = spec.shape
        if channels != len(self.n_values):
            raise ValueError(
                f"OneHot has {len(self.n_values)} channels for an observation {list(spec.shape)} of {channels}"
            )
        return OneHotEncoder(self.n_values, prod(cells))


class OneHotEncoder(nn.Module):
    """The encoder of a OneHot: [rows, channels, ...] -> [rows, size] float32, ordered by channel, code and cell."""

    def __init__(self, n_values: tuple[int, ...], cells: int):
        super().__init__()
        self.size = sum(n_values) * cells
        # For each output, the index of its value in the flattened observation, and the code for which it is 1.
        channels = [channel for channel, count in enumerate(n_values) for _ in range(count)]
        codes = [code for count in n_values for code in range(count)]
        self.indices = (torch.tensor(channels).unsqueeze(-1) * cells + torch.arange(cells)).flatten()
        self.codes = torch.tensor(codes, dtype=torch.int32).repeat_interleave(cells)

    def forward(self, obs: Tensor) -> Tensor:
        self.indices, self.codes = self.indices.to(obs.device), self.codes.to(obs.device)
        return (obs.flatten(1).int().index_select(1, self.indices) == self.codes).float()

    def numpy(self) -> NumpyFunction:
        indices, codes = self.indices.cpu().numpy(), self.codes.cpu().numpy()
        return lambda obs: (obs.reshape(len(obs), -1)[:, indices] == codes).astype(np.float32)


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

    def __call__(self, spec: ObsSpec) -> Callable[[Tensor], Tensor]:
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
        parts: list[nn.Module] = []
        inputs = spec.shape[0]
        for layer in self.layers:
            convolution = Convolution(inputs, *layer) if parts else InputConvolution(spec.high, inputs, *layer)
            parts += [convolution, ACTIVATIONS[self.activation]()]
            inputs = layer[0]
        return ConvEncoder(parts, inputs * sides[0] * sides[1], self.units, self.activation)


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

    def __call__(self, spec: ObsSpec) -> ConvEncoder:
        inputs, rows, columns = _image_shape(spec)
        parts: list[nn.Module] = []
        for outputs in self.channels:
            # No activation before the pooling, since each block begins with one, as in the paper.
            shape = (inputs, outputs, 3, 1, 1)
            convolution = Convolution(*shape) if parts else InputConvolution(spec.high, *shape)
            parts += [convolution, nn.MaxPool2d(3, 2, padding=1), ResidualBlock(outputs), ResidualBlock(outputs)]
            inputs, rows, columns = outputs, (rows + 1) // 2, (columns + 1) // 2
        encoder = ConvEncoder([*parts, nn.ReLU()], inputs * rows * columns, self.units)
        if self.spectral_norm:
            for layer in encoder.modules():
                if isinstance(layer, nn.Conv2d):
                    limit_spectral_norm(layer)
        return encoder


class Convolution(nn.Conv2d):
    """A convolution whose weights start orthogonal, its biases 0."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, padding: int = 0):
        super().__init__(inputs, outputs, kernel, stride, padding)
        nn.init.orthogonal_(self.weight, GAIN)
        nn.init.zeros_(self.get_parameter("bias"))


class InputConvolution(Convolution):
    """The first convolution: of images [rows, C, H, W] of bytes or float32, divided by their largest value `high`."""

    def __init__(self, high: float, *sizes: int):
        super().__init__(*sizes)
        self.high = high

    def forward(self, obs: Tensor) -> Tensor:
        # Channels last in memory up to the flat features: forward and backward of 168 frames of 84x84x4 through
        # NatureCnn take 2/3 of the time of channels first; 336 frames of 10x10x4 through (16, 3, 1) take the same
        # time. The weights are views of the flat parameters and keep their layout. The pixels are permuted as bytes:
        # `stack` takes half the time of `contiguous` and gives one layout for any input. Dividing the weights is
        # cheaper than dividing the pixels.
        pixels = torch.stack(obs.unbind(1), -1).float().permute(0, 3, 1, 2)
        weight = self.weight if self.high == 1 else self.weight / self.high
        return nn.functional.conv2d(pixels, weight, self.bias, self.stride, self.padding)


class ConvEncoder(nn.Module):
    """The encoder of a Conv or an ImpalaResNet: [rows, C, H, W] -> [rows, size].

    Args:
        parts: Convolutions and activations, or stages.
        flat_size: Size of all pixels after them.
        units: Units of a linear layer after the pixels; None: no linear layer.
        activation: The activation of this layer.
    """

    def __init__(self, parts: list[nn.Module], flat_size: int, units: int | None, activation: str = "relu"):
        super().__init__()
        self.layers = nn.Sequential(*parts)
        self.size = units or flat_size
        self.linear: Any = make_orthogonal_linear(flat_size, units, GAIN) if units else None
        self.activate = ACTIVATIONS[activation]()

    def forward(self, obs: Tensor) -> Tensor:
        features = self.layers(obs).permute(0, 2, 3, 1).flatten(1)  # [rows, H * W * C], in the order in memory
        return self.activate(self.linear(features)) if self.linear else features


class ResidualBlock(nn.Module):
    """A residual block: x + (relu, convolution, relu, convolution)(x), [rows, C, H, W]."""

    def __init__(self, channels: int):
        super().__init__()
        layers = (Convolution(channels, channels, 3, padding=1) for _ in range(2))
        self.residual = nn.Sequential(*(part for layer in layers for part in (nn.ReLU(), layer)))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.residual(x)


def _image_shape(spec: ObsSpec) -> tuple[int, int, int]:
    """Return channels, rows and columns of an image. Raises ValueError for any other observation."""
    if len(spec.shape) != 3:
        raise ValueError(
            f"an observation {list(spec.shape)} is not an image [channels, rows, columns]; Vector() encodes any shape"
        )
    channels, rows, columns = spec.shape
    return channels, rows, columns
