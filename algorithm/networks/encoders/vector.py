"""Vectors as they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np
from torch import Tensor, nn

from algorithm.specs import ObsSpec


@dataclass(frozen=True)
class Vector:
    """Factory of an encoder that hands a vector on, flattened and as float32."""

    def __call__(self, spec: ObsSpec) -> nn.Module:
        return VectorEncoder(spec)


class VectorEncoder(nn.Module):
    """[rows, *shape] of any dtype -> [rows, size] float32."""

    def __init__(self, spec: ObsSpec):
        super().__init__()
        self.size = prod(spec.shape)

    def forward(self, obs: Tensor) -> Tensor:
        return obs.flatten(1).float()

    def numpy(self) -> Callable[[np.ndarray], np.ndarray]:
        """The same in numpy."""
        return lambda obs: obs.reshape(len(obs), self.size).astype(np.float32, copy=False)
