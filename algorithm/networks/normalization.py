"""Layers that normalize features: over the rows of a batch, or over the features of each row.

Batch norms use their running statistics, unless a pass through the network is within a block of `batch_statistics`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.networks.constraints import Constraint, RowNorm
from algorithm.networks.fast_products import NumpyFunction

ValidRows = Tensor | Callable[[], Tensor]  # bool


@dataclass(frozen=True, kw_only=True)
class RowWeights:
    """The weights of the rows of a batch in its statistics.

    Without any valid row, the weights are those of all rows, and nothing is committed.
    """

    weights: Tensor | None  # [N] float32; the sum is 1; None for equal weights, which are found on the CPU only
    unbiased: Tensor  # n / (n - 1) for n valid rows, a scalar: factor that makes the variance of the batch unbiased
    commits: Tensor  # 1 if statistics of this batch are committed, otherwise 0, a scalar


class BatchRows:
    """The rows of the batches that pass through a network in a block of `batch_statistics`."""

    def __init__(self, valid: ValidRows, commits: bool):
        self._valid, self.commits = valid, commits
        self._weights: dict[torch.Size, RowWeights] = {}

    def select(self, shape: torch.Size) -> RowWeights:
        """Return the weights of the rows of an input [*shape, F], as `batch_statistics` describes them.

        Raises:
            ValueError: The shape of the input does not fit the rows of the batch.
        """
        if shape not in self._weights:
            # Inference tensors could not be saved for the gradient of another pass.
            with torch.inference_mode(False), torch.no_grad():
                self._weights[shape] = _weigh_rows(self._expand(shape).reshape(-1))
        return self._weights[shape]

    def _expand(self, shape: torch.Size) -> Tensor:
        """Return the valid rows in the shape of an input."""
        if not isinstance(self._valid, Tensor):
            self._valid = self._valid()
        valid, axes = self._valid, self._valid.ndim
        if len(shape) == 1 or axes == 1:
            if shape.numel() % valid.numel() == 0:
                return valid.reshape(-1, 1).expand(-1, shape.numel() // valid.numel())
        elif len(shape) >= axes and shape[1 - axes :] == valid.shape[1:] and shape[-axes] <= len(valid):
            return valid[: shape[-axes]].expand(shape)
        raise ValueError(f"an input of rows {[*shape]} does not fit batch statistics of rows {[*valid.shape]}")


_BATCH_ROWS: ContextVar[BatchRows | None] = ContextVar("batch_rows", default=None)


@contextmanager
def batch_statistics(valid: ValidRows | None, *, commits: bool = False) -> Iterator[None]:
    """Normalize with the statistics of each batch, in all passes through networks within the block.

    Without batch normalization in the network, the block has no effect.

    Args:
        valid: The rows [T, B], or [n], bool whose values count in the statistics; all rows are normalized. A layer
            whose input has the rows [T * B] or [T, B] uses them as they are; for [t, B] with t < T, the first t; for
            [..., T, B], the same for each; for [T * B * K], K values for each row. A function that returns them is
            called only if a layer needs them. None: running statistics, as outside of a block.
        commits: Whether the running statistics learn from these batches when the optimizer steps (see `Learner`). Of
            several passes through the same layer, the last one counts.
    """
    token = _BATCH_ROWS.set(None if valid is None else BatchRows(valid, commits))
    try:
        yield
    finally:
        _BATCH_ROWS.reset(token)


def get_batch_rows() -> BatchRows | None:
    """Return the rows of the innermost block of `batch_statistics`; None for running statistics."""
    return _BATCH_ROWS.get()


def _weigh_rows(valid: Tensor) -> RowWeights:
    """Return the weights of rows [N] bool, without waiting for the device."""
    rows = valid.float()
    n = rows.sum()
    has_rows = (n > 0).float()
    weights: Tensor | None = torch.where(valid, rows / n.clamp(min=1), (1 - has_rows) / len(rows))
    if _are_all_valid(valid):
        weights = None
    return RowWeights(weights=weights, unbiased=n / (n - 1).clamp(min=1), commits=has_rows)


def _are_all_valid(valid: Tensor) -> bool:
    """Return whether all rows are valid, if that is known without waiting for the device."""
    return valid.device.type == "cpu" and bool(valid.all())


@dataclass(frozen=True, kw_only=True)
class BatchMoments:
    """The moments of a batch, with the normalization by them, and its gradient that passes through them."""

    x: Tensor  # [N, F]; with weights of rows, x - mean
    weights: Tensor | None  # weights [N] of the rows in mean and variance; None for equal ones
    mean: Tensor  # [F]
    variance: Tensor  # [F], biased
    inverse_std: Tensor  # [F]

    @classmethod
    def compute(cls, x: Tensor, weights: Tensor | None, epsilon: float) -> BatchMoments:
        """Return the moments of rows x [N, F]; see the attributes."""
        if weights is None:
            mean, variance = torch.ops.aten.batch_norm_update_stats.default(x, None, None, 0.0)
        else:
            mean = weights @ x
            x = x - mean
            variance = weights @ x.square()
        inverse_std = torch.rsqrt(variance + epsilon)
        return cls(x=x, weights=weights, mean=mean, variance=variance, inverse_std=inverse_std)

    def normalize(self, weight: Tensor, bias: Tensor) -> Tensor:
        """Return (x - mean) / std * weight + bias [N, F]."""
        scale = self.inverse_std * weight
        shift = torch.addcmul(bias, self.mean, scale, value=-1) if self.weights is None else bias
        return torch.addcmul(shift, self.x, scale)

    def differentiate(
        self, gradient: Tensor, weight: Tensor, *, needs_x: bool, needs_weight: bool
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Return the gradients of x, weight and bias, given that of the result of `normalize`; None if not needed."""
        if self.weights is None:
            return torch.ops.aten.native_batch_norm_backward.default(
                gradient,
                self.x,
                weight,
                None,
                None,
                self.mean,
                self.inverse_std,
                True,
                0.0,
                [needs_x, needs_weight, needs_weight],
            )
        products = gradient * self.x
        bias_gradient, weight_gradient = gradient.sum(0), products.sum(0).mul_(self.inverse_std)
        if not needs_x:
            return None, weight_gradient, bias_gradient
        # scale * (gradient - weights * (bias_gradient + normalized * weight_gradient)), in the memory of `products`.
        scale = self.inverse_std * weight
        by_std = (scale * self.inverse_std).mul_(weight_gradient)
        x_gradient = torch.addcmul(scale * bias_gradient, self.x, by_std, out=products)
        x_gradient.mul_(self.weights.neg().unsqueeze(1)).addcmul_(gradient, scale)
        return x_gradient, weight_gradient, bias_gradient


class BatchNormalization(torch.autograd.Function):
    """The normalization of x [N, F] by its moments, weight and bias [F]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, batch: BatchMoments, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.batch = batch
        ctx.save_for_backward(weight)
        return batch.normalize(weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, Tensor | None, Tensor | None]:
        (gradient,), (weight,) = gradients, ctx.saved_tensors
        x_gradient, weight_gradient, bias_gradient = ctx.batch.differentiate(
            gradient, weight, needs_x=ctx.needs_input_grad[0], needs_weight=True
        )
        return x_gradient, None, weight_gradient, bias_gradient


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
