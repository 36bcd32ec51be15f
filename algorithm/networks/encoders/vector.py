"""Vectors as they are, in units of one's own, or normalised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.networks.running_statistics import Normalizer
from algorithm.specs import ObsSpec


@dataclass(frozen=True)
class Vector:
    """Factory of an encoder that hands a vector on: flattened, as float32, times `scale`.

    `scale` is one number, or one for each component; networks learn best from numbers of about 1. `normalize` measures
    them instead: (x - mean) / std over all rows collected so far, clipped to [-clip, clip]. What is one-hot or binary
    is never normalised.

    Raises ValueError for `scale` and `normalize` together and for a clip that is not above 0; the encoder, where the
    count of scales differs from the observation's numbers.
    """

    scale: float | tuple[float, ...] = 1.0
    normalize: bool = False
    clip: float = 5.0

    def __post_init__(self) -> None:
        if self.normalize and self.scale != 1:
            raise ValueError(f"Vector has a scale {self.scale} and normalize: give one or the other")
        if not self.clip > 0:
            raise ValueError(f"Vector's clip is {self.clip}; it must be above 0")

    def __call__(self, spec: ObsSpec) -> nn.Module:
        size = prod(spec.shape)
        if isinstance(self.scale, tuple) and len(self.scale) != size:
            raise ValueError(f"Vector has {len(self.scale)} scales for an observation of {size} numbers")
        if self.normalize and (spec.dtype != "uint8" or spec.high > 1):
            return VectorEncoder(size, Normalizer(size, self.clip))
        return VectorEncoder(size, None if self.scale == 1 else Scale(self.scale))


class VectorEncoder(nn.Module):
    """[rows, *shape] of any dtype -> [rows, size] float32, in other `units` where there are any."""

    def __init__(self, size: int, transform: Scale | Normalizer | None):
        super().__init__()
        self.size = size
        self.transform: Any = transform

    def forward(self, obs: Tensor) -> Tensor:
        vector = obs.flatten(1).float()
        return vector if self.transform is None else self.transform(vector)

    def numpy(self) -> Callable[[np.ndarray], np.ndarray]:
        """The same in numpy."""
        size, transform = self.size, None if self.transform is None else self.transform.numpy()

        def encode(obs: np.ndarray) -> np.ndarray:
            vector = obs.reshape(len(obs), size).astype(np.float32, copy=False)
            return vector if transform is None else transform(vector)

        return encode

    def observe(self, obs: Tensor) -> None:
        """Take collected rows [n, *shape] into the running statistics, where there are any."""
        if isinstance(self.transform, Normalizer):
            self.transform.moments.merge(obs.flatten(1))


class Scale(nn.Module):
    """[rows, size] times a constant, which is neither learned nor saved."""

    def __init__(self, scale: float | tuple[float, ...]):
        super().__init__()
        self.scale = torch.tensor(scale)

    def forward(self, vector: Tensor) -> Tensor:
        self.scale = self.scale.to(vector.device)
        return vector * self.scale

    def numpy(self) -> Callable[[np.ndarray], np.ndarray]:
        """The same in numpy."""
        scale = self.scale.cpu().numpy()
        return lambda vector: vector * scale
