"""The weights, TD errors and metrics of the rows [T, B] of a batch, which agents share."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from algorithm.losses import squared_error


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


def weighted_means(weights: Tensor, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weighted sum of each of several [T, B] values, without gradient."""
    with torch.no_grad():
        sums = torch.stack(list(values.values())).flatten(1) @ weights.flatten()
    return dict(zip(values, sums.unbind(), strict=True))


def make_stream_metrics(name: str, target: Tensor, value: Tensor) -> dict[str, Tensor]:
    """Return the metrics of a stream's value output, as values of rows [T, B] by metric name."""
    return {f"train/{name}_critic_loss": squared_error(target, value), f"train/{name}_value": value}


def summarize_update(
    weights: Tensor, values: Mapping[str, Tensor], target: Tensor, value: Tensor, diagnostics: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the metrics of an update: weighted means over its rows, and the explained variance of the critic.

    Args:
        weights: As of `compute_explained_variance`, as `target` and `value`.
        values: The metrics that every agent has, of rows [T, B].
        target: The targets of the critic.
        value: Its values.
        diagnostics: Metrics of rows [T, B] about the targets and the policy gradient; may be empty.
    """
    means = weighted_means(weights, values) | (weighted_means(weights, diagnostics) if diagnostics else {})
    return {**means, "train/explained_variance": compute_explained_variance(weights, target, value)}


@torch.no_grad()
def compute_explained_variance(weights: Tensor, target: Tensor, value: Tensor) -> Tensor:
    """Return 1 - Var[target - value] / Var[target], a scalar: 1 for exact values, 0 for constant ones.

    It is 0 if the targets do not vary, beyond rounding.

    Args:
        weights: Weights [T, B] with which a sum over rows is a mean; 0 for rows that do not count.
        target: The targets [T, B] of the values.
        value: The values [T, B].
    """
    variance, error_variance = (_compute_variance(weights, each) for each in (target, target - value))
    rounding = (8 * torch.finfo(target.dtype).eps) ** 2 * (weights * target.square()).sum()
    return torch.where(variance > rounding, 1 - error_variance / variance, 0.0)


def _compute_variance(weights: Tensor, values: Tensor) -> Tensor:
    return (weights * (values - (weights * values).sum()).square()).sum()
