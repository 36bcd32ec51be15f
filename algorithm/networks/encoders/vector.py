"""Vectors as they are, or in units of one's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.specs import ObsSpec


@dataclass(frozen=True)
class Vector:
    """Factory of an encoder that hands a vector on: flattened, as float32, times `scale`.

    `scale` is one number, or one for each component; networks learn best from numbers of about 1. The encoder raises
    ValueError where their count differs from the observation's.
    """

    scale: float | tuple[float, ...] = 1.0

    def __call__(self, spec: ObsSpec) -> nn.Module:
        return VectorEncoder(spec, self.scale)


class VectorEncoder(nn.Module):
    """[rows, *shape] of any dtype -> [rows, size] float32."""

    def __init__(self, spec: ObsSpec, scale: float | tuple[float, ...]):
        super().__init__()
        self.size = prod(spec.shape)
        if isinstance(scale, tuple) and len(scale) != self.size:
            raise ValueError(f"Vector has {len(scale)} scales for an observation of {self.size} numbers")
        # A constant, neither learned nor saved.
        self.scale = None if scale == 1 else torch.tensor(scale)

    def forward(self, obs: Tensor) -> Tensor:
        vector = obs.flatten(1).float()
        if self.scale is None:
            return vector
        self.scale = self.scale.to(vector.device)
        return vector * self.scale

    def numpy(self) -> Callable[[np.ndarray], np.ndarray]:
        """The same in numpy."""
        size, scale = self.size, None if self.scale is None else self.scale.cpu().numpy()

        def encode(obs: np.ndarray) -> np.ndarray:
            vector = obs.reshape(len(obs), size).astype(np.float32, copy=False)
            return vector if scale is None else vector * scale

        return encode
