"""The moments of a batch, and the normalization by them as one operation for autograd."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


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
