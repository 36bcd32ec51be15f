"""Layers that follow each other as one operation, for which autograd calls one backward function.

Each layer has a gradient by hand, which is that of autograd up to rounding and differentiable once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor

from algorithm.networks.batch_rows import RowWeights, select_batch_rows
from algorithm.networks.fast_products import is_needed

Gradients = tuple[Tensor | None, list[Tensor | None]]  # of the inputs, and of each parameter


class FusedLayer(Protocol):
    """A layer on rows [n, F]."""

    def run(self, x: Tensor, rows: RowWeights | None, /) -> tuple[Tensor, Any]:
        """Return the outputs, and what `differentiate` needs, which does not contain the outputs of the last layer.

        Otherwise they would keep the graph alive, and it them, until Python collects garbage.

        Args:
            x: The inputs [n, F].
            rows: The weights of the rows in the statistics of batch norms; None for running statistics.
        """

    def differentiate(self, gradient: Tensor, saved: Any, /, needs_x: bool, needs_parameters: bool) -> Gradients:
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
