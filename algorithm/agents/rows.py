"""The rows [T, B] of a batch that count in losses and priorities."""

from __future__ import annotations

import torch
from torch import Tensor


def mean_weights(valid: Tensor, weight: Tensor) -> Tensor:
    """Return weights [T, B] with which a sum over rows is the mean over valid rows.

    Args:
        valid: [T, B]; if no row is valid, all weights are 0.
        weight: Importance of each column [B], by which its rows are scaled.
    """
    rows = valid.to(weight.dtype)
    return rows * (weight / rows.sum().clamp(min=1))


def td_error_stats(valid: Tensor, error: Tensor) -> Tensor:
    """Return the largest and the mean |error| [2, B] of each column's valid rows, 0 if a column has none."""
    magnitude = valid * error.abs()
    return torch.stack((magnitude.amax(0), magnitude.sum(0) / valid.sum(0).clamp(min=1)))
