"""Running statistics, kept in float64 beside the parameters: merged, never stepped or averaged."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RunningMoments(nn.Module):
    """Count, mean and sum of squared deviations of all values seen so far (Chan et al. 1983, parallel merge)."""

    count: Tensor
    mean: Tensor
    deviations: Tensor

    def __init__(self, *shape: int):
        super().__init__()
        for name in ("mean", "deviations"):
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def merge(self, values: Tensor) -> None:
        """Take in rows of values [n, *shape]."""
        if not len(values):
            return
        values = values.double()
        mean = values.mean(0)
        shift = mean - self.mean
        total = self.count + len(values)
        self.deviations += (values - mean).square().sum(0) + shift.square() * self.count * len(values) / total
        self.mean += shift * len(values) / total
        self.count.copy_(total)

    @property
    def std(self) -> Tensor:
        """Standard deviation; 1 while all values are the same, so that it can be divided by."""
        variance = self.deviations / self.count.clamp(min=1)
        return torch.where(variance > 0, variance.sqrt(), 1.0)
