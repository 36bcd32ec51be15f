"""Running mean and standard deviation: float64 buffers that are merged with new rows, never learned or averaged."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.networks.linear import NumpyFunction


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
