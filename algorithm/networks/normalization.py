"""Layers that normalize features: over the rows of a batch, or over the features of each row."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.networks.batch_moments import BatchMoments, BatchNormalization
from algorithm.networks.batch_statistics import RowWeights, get_batch_rows
from algorithm.networks.constraints import Constraint, RowNorm
from algorithm.networks.linear import NumpyFunction

Correction = tuple[Tensor, Tensor]  # r and d [F] of batch renormalization


class BatchNorm(nn.Module):
    """Batch normalization (Ioffe & Szegedy 2015, arXiv 1502.03167): y = (x - mean) / std * weight + bias per feature.

    Mean and variance are running statistics, or within `batch_statistics` those of the rows of the batch. `running` and
    `increment` are neither parameters nor buffers, but parts of flat tensors of FlatParameters. A pass that commits
    writes to `increment` by how much its batch changes `running`.

    Args:
        size: Number F of features; [..., F] -> [..., F].
        momentum: Weight of a batch in the running statistics.
        epsilon: Added to the variance.
        unit_weights: Whether weight and bias together keep their initial norm sqrt(F).

    Attributes:
        running: Running mean and (unbiased) variance, concatenated [2 F].
        increment: The change of `running` by the batch of the current update; 0 if no pass commits.
    """

    def __init__(self, size: int, *, momentum: float = 0.01, epsilon: float = 1e-5, unit_weights: bool = False):
        super().__init__()
        self.size, self.momentum, self.epsilon = size, momentum, epsilon
        self.weight, self.bias = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))
        self.running = torch.cat((torch.zeros(size), torch.ones(size)))
        self.increment = torch.zeros_like(self.running)
        self.constraint = _make_constraint(size, unit_weights)

    def forward(self, x: Tensor) -> Tensor:
        rows = get_batch_rows()
        if rows is None:
            scale, shift = self.compute_affine()
            return torch.addcmul(shift, x.float(), scale)
        flat = x.reshape(-1, self.size).float()
        with torch.no_grad(), _disable_autocast(flat.device.type):
            row_weights = rows.select(x.shape[:-1])
            batch = BatchMoments.compute(flat, row_weights.weights, self.epsilon)
        correction = self.prepare_batch(batch, row_weights if rows.commits else None)
        weight, bias = self.correct_parameters(correction)
        return BatchNormalization.apply(flat, batch, weight, bias).view(x.shape)

    @torch.no_grad()
    def prepare_batch(self, batch: BatchMoments, commits: RowWeights | None) -> Correction | None:
        """Set the increment if the pass commits, and return the correction for a batch with these moments.

        Args:
            batch: The moments.
            commits: The weights of the rows; None if the pass does not commit.
        """
        if commits:
            self._set_increment(batch, commits)
        return self._compute_correction(batch)

    def correct_parameters(self, correction: Correction | None) -> tuple[Tensor, Tensor]:
        """Return weight and bias [F] with the correction r, d: weight r, and bias + weight d."""
        if correction is None:
            return self.weight, self.bias
        r, d = correction
        return self.weight * r, torch.addcmul(self.bias, self.weight, d)

    def _compute_correction(self, batch: BatchMoments) -> Correction | None:
        """Return r and d [F] of batch renormalization; None without it."""
        return None

    def compute_affine(self) -> tuple[Tensor, Tensor]:
        """Return scale and shift [F] of the running statistics: y = x * scale + shift."""
        mean, variance = self.running[: 2 * self.size].chunk(2)
        scale = self.weight * torch.rsqrt(variance + self.epsilon)
        return scale, self.bias - mean * scale

    def differentiate_affine(
        self, gradient: Tensor, x: Tensor, scale: Tensor, needs_x: bool, needs_weight: bool
    ) -> tuple[Tensor | None, list[Tensor | None]]:
        """Return the gradients of x, and of weight and bias, given that of x * scale + shift (see `compute_affine`)."""
        x_gradient = gradient * scale if needs_x else None
        if not needs_weight:
            return x_gradient, [None, None]
        mean, variance = self.running[: 2 * self.size].chunk(2)
        weight_gradient = ((x - mean) * gradient).sum(0) * torch.rsqrt(variance + self.epsilon)
        return x_gradient, [weight_gradient, gradient.sum(0)]

    def _set_increment(self, batch: BatchMoments, rows: RowWeights) -> None:
        part = slice(2 * self.size)
        increment = torch.cat((batch.mean, batch.variance * rows.unbiased), out=self.increment[part])
        increment.sub_(self.running[part]).mul_(self.momentum)
        if batch.weights is not None:
            increment.mul_(rows.commits)

    def numpy(self) -> NumpyFunction:
        """Return `forward` with running statistics in numpy, on views: later updates have effect."""
        weight, bias, epsilon = self.weight.detach().numpy(), self.bias.detach().numpy(), self.epsilon
        mean, variance = np.split(self.running.numpy()[: 2 * self.size], 2)
        return lambda x: (x - mean) * (weight / np.sqrt(variance + epsilon)) + bias


class BatchRenorm(BatchNorm):
    """Batch renormalization (Ioffe 2017, arXiv 1702.03275, Alg. 1): y = ((x - mean) / std * r + d) * weight + bias.

    r = std / running std in [1 / max_r, max_r] and d = (mean - running mean) / running std in [-max_d, max_d], both
    without gradient, bring the normalization of a batch close to that with the running statistics. For the first
    `warmup` committed batches r is 1 and d is 0 (Bhatt et al. 2024, arXiv 1902.05605, CrossQ).

    Args:
        size: See BatchNorm.
        momentum: See BatchNorm.
        epsilon: See BatchNorm.
        unit_weights: See BatchNorm.
        max_r: Largest r.
        max_d: Largest |d|.
        warmup: Number of batches; the count is the last value of `running`.
    """

    def __init__(
        self,
        size: int,
        *,
        momentum: float = 0.01,
        epsilon: float = 1e-5,
        unit_weights: bool = False,
        max_r: float = 3.0,
        max_d: float = 5.0,
        warmup: int = 100_000,
    ):
        super().__init__(size, momentum=momentum, epsilon=epsilon, unit_weights=unit_weights)
        self.max_r, self.max_d, self.warmup = max_r, max_d, warmup
        self.running = torch.cat((self.running, torch.zeros(1)))
        self.increment = torch.zeros_like(self.running)

    def _compute_correction(self, batch: BatchMoments) -> Correction | None:
        running_mean, running_variance = self.running[:-1].chunk(2)
        inverse_running_std = torch.rsqrt(running_variance + self.epsilon)
        is_warm = self.running[-1] >= self.warmup
        r = (inverse_running_std / batch.inverse_std).clamp(1 / self.max_r, self.max_r)
        d = ((batch.mean - running_mean) * inverse_running_std).clamp(-self.max_d, self.max_d)
        return torch.where(is_warm, r, 1.0), torch.where(is_warm, d, 0.0)

    def _set_increment(self, batch: BatchMoments, rows: RowWeights) -> None:
        super()._set_increment(batch, rows)
        self.increment[-1] = rows.commits


class LayerNorm(nn.LayerNorm):
    """Normalization over the features of each row (Ba et al. 2016, arXiv 1607.06450): [..., F] -> [..., F].

    Args:
        size: Number F of features.
        unit_weights: Whether weight and bias together keep their initial norm sqrt(F).
    """

    def __init__(self, size: int, *, unit_weights: bool = False):
        super().__init__(size)
        self.constraint = _make_constraint(size, unit_weights)

    def numpy(self) -> NumpyFunction:
        """Return `forward` in numpy, on views of the parameters."""
        weight, bias, epsilon = self.weight.detach().numpy(), self.bias.detach().numpy(), self.eps

        def forward(x: np.ndarray) -> np.ndarray:
            centered = x - x.mean(-1, keepdims=True)
            return centered / np.sqrt(np.square(centered).mean(-1, keepdims=True) + epsilon) * weight + bias

        return forward


class RmsNorm(nn.Module):
    """Division of each row by its root mean square (Zhang & Sennrich 2019, arXiv 1910.07467): [..., F] -> [..., F].

    Args:
        size: Number F of features.
        unit_weights: Whether the weight keeps its initial norm sqrt(F).
        epsilon: Added to the mean square.
    """

    def __init__(self, size: int, *, unit_weights: bool = False, epsilon: float = 1e-6):
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(torch.ones(size)), epsilon
        self.constraint = _make_constraint(size, unit_weights)

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        return x * self.compute_inverse(x) * self.weight

    def compute_inverse(self, x: Tensor) -> Tensor:
        """Return 1 / the root mean square [..., 1] of each row."""
        return torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon)

    def numpy(self) -> NumpyFunction:
        """Return `forward` in numpy, on a view of the parameter."""
        weight, epsilon = self.weight.detach().numpy(), self.epsilon
        return lambda x: x / np.sqrt(np.square(x).mean(-1, keepdims=True) + epsilon) * weight


NORMS: dict[str, Callable[..., Any]] = {
    "batch": BatchNorm,
    "batch_renorm": BatchRenorm,
    "layer": LayerNorm,
    "rms": RmsNorm,
}


def check_norm(factory: str, norm: str | None) -> None:
    """Check the name of a normalization, for the factory named `factory`. Raises ValueError for an unknown one."""
    if norm is not None and norm not in NORMS:
        raise ValueError(f"{factory} has the norm {norm!r}; there are {', '.join(NORMS)}, and None")


def make_norm(norm: str, size: int, *, unit_weights: bool = False) -> Any:
    """Return the layer of a normalization by its name."""
    return NORMS[norm](size, unit_weights=unit_weights)


def find_batch_norms(modules: Iterable[nn.Module]) -> list[BatchNorm]:
    """Return the batch norms in some modules, in order."""
    return [layer for module in modules for layer in module.modules() if isinstance(layer, BatchNorm)]


def _make_constraint(size: int, unit_weights: bool) -> Constraint | None:
    """Return the constraint that keeps the initial norm sqrt(F) of the weights of a layer for F features."""
    return RowNorm(1, size**0.5) if unit_weights else None


def _disable_autocast(device: str) -> AbstractContextManager[object]:
    """Return a context without autocast, in which products have the precision of their factors."""
    is_enabled = device != "meta" and torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if is_enabled else nullcontext()
