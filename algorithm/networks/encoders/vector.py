"""Encoders without layers: vectors, unchanged, scaled or normalized by running statistics, and one-hot codes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.networks.mlp import check_sizes
from algorithm.networks.numpy_forms import NumpyFunction
from algorithm.specs import ObsSpec


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
        """Return `forward` in numpy, on views of the statistics: later merges have effect."""
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
        """Return `forward` in numpy."""
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
        """Return `forward` in numpy."""
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
        """Return `forward` in numpy."""
        indices, codes = self.indices.cpu().numpy(), self.codes.cpu().numpy()
        return lambda obs: (obs.reshape(len(obs), -1)[:, indices] == codes).astype(np.float32)
