"""Encoders of vectors: unchanged, scaled, or normalized."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.networks.linear import NumpyFunction
from algorithm.networks.running_statistics import Normalizer
from algorithm.specs import ObsSpec


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
