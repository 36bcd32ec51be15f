"""Layers that normalize features: over the rows of a batch, or over the features of each row.

Batch norms use their running statistics, unless a pass through the network is within a block of `batch_statistics`.

Layers with batch norms that follow each other run as one operation, for which autograd calls one backward function.
Each of them has a gradient by hand, which is that of autograd up to rounding and differentiable once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.networks.constraints import Constraint, RowNorm
from algorithm.networks.fast_products import is_needed
from algorithm.networks.modules import NumpyFunction

ValidRows = Tensor | Callable[[], Tensor]  # bool


@dataclass(frozen=True, kw_only=True)
class RowWeights:
    """The weights of the rows of a batch in its statistics.

    Without any valid row, the weights are those of all rows, and nothing is committed.
    """

    weights: Tensor | None  # [N] float32; the sum is 1; None for equal weights, which are found on the CPU only
    unbiased: Tensor  # n / (n - 1) for n valid rows, a scalar: factor that makes the variance of the batch unbiased
    has_rows: Tensor  # 1 if any row is valid, otherwise 0, a scalar
    commits: bool  # whether running statistics learn from the batch, if it has rows


class BatchRows:
    """The rows of the batches that pass through a network in a block of `batch_statistics`."""

    def __init__(self, valid: ValidRows, commits: bool):
        self._valid, self._commits = valid, commits
        self._weights: dict[torch.Size, RowWeights] = {}

    def select(self, shape: torch.Size) -> RowWeights:
        """Return the weights of the rows of an input [*shape, F], as `batch_statistics` describes them.

        Raises:
            ValueError: The shape of the input does not fit the rows of the batch.
        """
        if shape not in self._weights:
            # Inference tensors could not be saved for the gradient of another pass.
            with torch.inference_mode(False), torch.no_grad():
                self._weights[shape] = self._weigh(self._expand(shape).reshape(-1))
        return self._weights[shape]

    def _weigh(self, valid: Tensor) -> RowWeights:
        """Return the weights of rows [N] bool, without waiting for the device."""
        rows = valid.float()
        n = rows.sum()
        has_rows, weights = (n > 0).float(), None
        if valid.device.type != "cpu" or not valid.all():
            weights = torch.where(valid, rows / n.clamp(min=1), (1 - has_rows) / len(rows))
        unbiased = n / (n - 1).clamp(min=1)
        return RowWeights(weights=weights, unbiased=unbiased, has_rows=has_rows, commits=self._commits)

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


def select_batch_rows(shape: torch.Size) -> RowWeights | None:
    """Return the weights of the rows of an input [*shape, F] in the innermost block; None for running statistics."""
    rows = _BATCH_ROWS.get()
    return None if rows is None else rows.select(shape)


Gradients = tuple[Tensor | None, list[Tensor | None]]  # of the inputs, and of each parameter


class FusedLayer(nn.Module):
    """A layer that can be a part of a fused operation on rows [n, F]."""

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x, None)[0]

    @abstractmethod
    def run(self, x: Tensor, rows: RowWeights | None) -> tuple[Tensor, Any]:
        """Return the outputs, and what `differentiate` needs, which does not contain the outputs of the last layer.

        Otherwise they would keep the graph alive, and it them, until Python collects garbage.

        Args:
            x: The inputs [n, F].
            rows: The weights of the rows in the statistics of batch norms; None for running statistics.
        """

    @abstractmethod
    def differentiate(self, gradient: Tensor, saved: Any, needs_x: bool, needs_parameters: bool) -> Gradients:
        """Return the gradients of the inputs and of the parameters, given that of the outputs, which stays as it is.

        Args:
            gradient: The gradient of the outputs.
            saved: The second result of `run`.
            needs_x: Whether the gradient of the inputs is needed; otherwise it may be None.
            needs_parameters: Whether those of the parameters are needed; otherwise they may be None.
        """


def can_fuse(x: Tensor, parameters: Iterable[Tensor]) -> bool:
    """Return whether a layer with these parameters can run on x as one operation.

    It can on the CPU, in float32, without autocast, if no gradients are recorded or all parameters are trained.
    """
    return (
        type(x) is Tensor  # not a symbol, as in an export
        and x.dtype == torch.float32
        and x.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and not torch.jit.is_tracing()
        and (not torch.is_grad_enabled() or all(parameter.requires_grad for parameter in parameters))
    )


def run_fused(x: Tensor, layer: FusedLayer, parameters: Iterable[Tensor]) -> Tensor:
    """Return the outputs of a layer as one operation: [..., F] -> [..., outputs].

    Args:
        x: The inputs [..., F].
        layer: The layer.
        parameters: Its parameters, in the order of the gradients that it returns.
    """
    flat = x if x.ndim == 2 else x.reshape(-1, x.shape[-1])
    rows = select_batch_rows(x.shape[:-1])
    if torch.is_grad_enabled():
        outputs = _FusedFunction.apply(layer, rows, flat, *parameters)
    else:
        outputs, _ = layer.run(flat, rows)
    return outputs if x.ndim == 2 else outputs.view(*x.shape[:-1], -1)


class _FusedFunction(torch.autograd.Function):
    """A layer on rows [n, F]."""

    @staticmethod
    def forward(ctx: Any, layer: FusedLayer, rows: RowWeights | None, x: Tensor, *parameters: Tensor) -> Tensor:
        outputs, ctx.saved = layer.run(x, rows)
        ctx.layer = layer
        ctx.save_for_backward(x, *parameters)  # so that autograd finds changes of them
        return outputs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        n_parameters = len(ctx.saved_tensors) - 1
        needs_parameters = any(is_needed(ctx, index) for index in range(1, 1 + n_parameters))
        x_gradient, results = ctx.layer.differentiate(gradients[0], ctx.saved, is_needed(ctx, 0), needs_parameters)
        return None, None, x_gradient, *results


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
        self, gradient: Tensor, weight: Tensor, needs_x: bool, needs_weight: bool
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


class BatchNorm(FusedLayer):
    """Batch normalization (Ioffe & Szegedy 2015, arXiv 1502.03167): y = (x - mean) / std * weight + bias per feature.

    Mean and variance are running statistics, or within `batch_statistics` those of the rows of the batch. `running` and
    `increment` are neither parameters nor buffers, but parts of flat tensors of FlatParameters. A pass that commits
    writes to `increment` by how much its batch changes `running`.

    Args:
        size: Number F of features; [..., F] -> [..., F].
        unit_weights: Whether weight and bias together keep their initial norm sqrt(F).

    Attributes:
        momentum: Weight of a batch in the running statistics.
        epsilon: Added to the variance.
        running: Running mean and (unbiased) variance, concatenated [2 F].
        increment: The change of `running` by the batch of the current update; 0 if no pass commits.
    """

    momentum, epsilon = 0.01, 1e-5

    def __init__(self, size: int, *, unit_weights: bool = False):
        super().__init__()
        self.size = size
        self.weight, self.bias = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))
        self.running = torch.cat((torch.zeros(size), torch.ones(size)))
        self.increment = torch.zeros_like(self.running)
        self.constraint = _make_constraint(size, unit_weights)

    def forward(self, x: Tensor) -> Tensor:
        if select_batch_rows(x.shape[:-1]) is None:
            return super().forward(x.float())
        with _disable_autocast(x.device.type):
            return run_fused(x.float(), self, (self.weight, self.bias))

    def run(self, x: Tensor, rows: RowWeights | None) -> tuple[Tensor, Any]:
        if rows is None:
            mean, variance = self.running[: 2 * self.size].chunk(2)
            scale = self.weight * torch.rsqrt(variance + self.epsilon)
            return torch.addcmul(self.bias - mean * scale, x, scale), (x, None, scale, None)
        batch = BatchMoments.compute(x, rows.weights, self.epsilon)
        if rows.commits:
            self._set_increment(batch, rows)
        weight: Tensor = self.weight
        bias: Tensor = self.bias
        if correction := self._compute_correction(batch):
            r, d = correction
            weight, bias = weight * r, torch.addcmul(bias, weight, d)
        return batch.normalize(weight, bias), (x, batch, weight, correction)

    def differentiate(self, gradient: Tensor, saved: Any, needs_x: bool, needs_parameters: bool) -> Gradients:
        x, batch, weight, correction = saved
        if batch is None:
            x_gradient = gradient * weight if needs_x else None
            if not needs_parameters:
                return x_gradient, [None, None]
            mean, variance = self.running[: 2 * self.size].chunk(2)
            weight_gradient = ((x - mean) * gradient).sum(0) * torch.rsqrt(variance + self.epsilon)
            return x_gradient, [weight_gradient, gradient.sum(0)]
        x_gradient, weight_gradient, bias_gradient = batch.differentiate(gradient, weight, needs_x, needs_parameters)
        if correction and needs_parameters:
            r, d = correction
            weight_gradient = torch.addcmul(weight_gradient * r, bias_gradient, d)
        return x_gradient, [weight_gradient, bias_gradient]

    def _compute_correction(self, batch: BatchMoments) -> tuple[Tensor, Tensor] | None:
        """Return r and d [F] of batch renormalization; None without it."""
        return None

    def _set_increment(self, batch: BatchMoments, rows: RowWeights) -> None:
        """Write to `increment` by how much a batch changes `running`."""
        part = slice(2 * self.size)
        increment = torch.cat((batch.mean, batch.variance * rows.unbiased), out=self.increment[part])
        increment.sub_(self.running[part]).mul_(self.momentum)
        if batch.weights is not None:
            increment.mul_(rows.has_rows)

    def numpy(self) -> NumpyFunction:
        weight, bias, epsilon = self.weight.detach().numpy(), self.bias.detach().numpy(), self.epsilon
        mean, variance = np.split(self.running.numpy()[: 2 * self.size], 2)
        return lambda x: (x - mean) * (weight / np.sqrt(variance + epsilon)) + bias


class BatchRenorm(BatchNorm):
    """Batch renormalization (Ioffe 2017, arXiv 1702.03275, Alg. 1): y = ((x - mean) / std * r + d) * weight + bias.

    r = std / running std in [1 / max_r, max_r] and d = (mean - running mean) / running std in [-max_d, max_d], both
    without gradient, bring the normalization of a batch close to that with the running statistics. For the first
    `warmup` committed batches, of which the last value of `running` is the count, r is 1 and d is 0 (Bhatt et al. 2024,
    arXiv 1902.05605, CrossQ).
    """

    max_r, max_d, warmup = 3.0, 5.0, 100_000

    def __init__(self, size: int, *, unit_weights: bool = False):
        super().__init__(size, unit_weights=unit_weights)
        self.running = torch.cat((self.running, torch.zeros(1)))
        self.increment = torch.zeros_like(self.running)

    def _compute_correction(self, batch: BatchMoments) -> tuple[Tensor, Tensor]:
        running_mean, running_variance = self.running[:-1].chunk(2)
        inverse_running_std = torch.rsqrt(running_variance + self.epsilon)
        is_warm = self.running[-1] >= self.warmup
        r = (inverse_running_std / batch.inverse_std).clamp(1 / self.max_r, self.max_r)
        d = ((batch.mean - running_mean) * inverse_running_std).clamp(-self.max_d, self.max_d)
        return torch.where(is_warm, r, 1.0), torch.where(is_warm, d, 0.0)

    def _set_increment(self, batch: BatchMoments, rows: RowWeights) -> None:
        super()._set_increment(batch, rows)
        self.increment[-1] = rows.has_rows


class LayerNorm(nn.LayerNorm):
    """Normalization over the features of each row (Ba et al. 2016, arXiv 1607.06450): [..., F] -> [..., F].

    Args:
        unit_weights: Whether weight and bias together keep their initial norm sqrt(F).
    """

    def __init__(self, size: int, *, unit_weights: bool = False):
        super().__init__(size)
        self.constraint = _make_constraint(size, unit_weights)

    def numpy(self) -> NumpyFunction:
        weight, bias, epsilon = self.weight.detach().numpy(), self.bias.detach().numpy(), self.eps

        def forward(x: np.ndarray) -> np.ndarray:
            centered = x - x.mean(-1, keepdims=True)
            return centered / np.sqrt(np.square(centered).mean(-1, keepdims=True) + epsilon) * weight + bias

        return forward


class RmsNorm(FusedLayer):
    """Division of each row by its root mean square (Zhang & Sennrich 2019, arXiv 1910.07467): [..., F] -> [..., F].

    Args:
        unit_weights: Whether the weight keeps its initial norm sqrt(F).
    """

    epsilon = 1e-6

    def __init__(self, size: int, *, unit_weights: bool = False):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.constraint = _make_constraint(size, unit_weights)

    def run(self, x: Tensor, rows: RowWeights | None) -> tuple[Tensor, Any]:
        x = x.float()
        inverse = torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon)
        normalized = x * inverse
        return normalized * self.weight, (normalized, inverse)

    def differentiate(self, gradient: Tensor, saved: Any, needs_x: bool, needs_parameters: bool) -> Gradients:
        normalized, inverse = saved
        weight_gradient = (gradient * normalized).sum(0) if needs_parameters else None
        if not needs_x:
            return None, [weight_gradient]
        scaled = gradient * self.weight
        mean = (scaled * normalized).mean(-1, keepdim=True)
        return scaled.addcmul_(normalized, mean, value=-1).mul_(inverse), [weight_gradient]

    def numpy(self) -> NumpyFunction:
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
