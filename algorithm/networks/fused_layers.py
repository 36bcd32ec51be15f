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
    """A layer on rows [n, F], whose gradients are in the order of its parameters."""

    def parameters(self) -> Iterable[Tensor]:
        """Return the parameters."""

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


class FusedRelu:
    """A ReLU, in the memory of its inputs, which nothing else reads."""

    def parameters(self) -> Iterable[Tensor]:
        return ()

    def run(self, x: Tensor, rows: RowWeights | None) -> tuple[Tensor, Any]:
        y = x.relu_()
        return y, y

    def differentiate(self, gradient: Tensor, saved: Any, needs_x: bool, needs_parameters: bool) -> Gradients:
        return torch.ops.aten.threshold_backward.default(gradient, saved, 0), []


class FusedSequence:
    """Layers that follow each other."""

    def __init__(self, *layers: FusedLayer):
        self.layers = layers
        self._parameters = [parameter for layer in layers for parameter in layer.parameters()]

    def parameters(self) -> list[Tensor]:
        return self._parameters

    def run(self, x: Tensor, rows: RowWeights | None) -> tuple[Tensor, Any]:
        saved = []
        for layer in self.layers:
            x, layer_saved = layer.run(x, rows)
            saved.append(layer_saved)
        return x, saved

    def differentiate(self, gradient: Tensor, saved: Any, needs_x: bool, needs_parameters: bool) -> Gradients:
        result: Tensor | None = gradient
        gradients: list[Tensor | None] = []
        for index in reversed(range(len(self.layers))):
            assert result is not None  # the gradient of the inputs of the next layer
            result, part = self.layers[index].differentiate(
                result, saved[index], needs_x=index > 0 or needs_x, needs_parameters=needs_parameters
            )
            gradients[:0] = part
        return result, gradients


class FusedResidual(FusedSequence):
    """The inputs plus the outputs of layers that follow each other."""

    def run(self, x: Tensor, rows: RowWeights | None) -> tuple[Tensor, Any]:
        y, saved = super().run(x, rows)
        return x + y, saved

    def differentiate(self, gradient: Tensor, saved: Any, needs_x: bool, needs_parameters: bool) -> Gradients:
        x_gradient, gradients = super().differentiate(gradient, saved, needs_x, needs_parameters)
        return None if x_gradient is None else x_gradient.add_(gradient), gradients


def can_fuse(x: Tensor, layers: FusedSequence) -> bool:
    """Return whether layers with batch norms run on x as one operation.

    They do so on the CPU, in float32, without autocast, if no gradients are recorded or all parameters are trained.
    """
    return (
        type(x) is Tensor  # not a symbol, as in an export
        and x.dtype == torch.float32
        and x.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and not torch.jit.is_tracing()
        and (not torch.is_grad_enabled() or all(parameter.requires_grad for parameter in layers.parameters()))
    )


def run_fused(x: Tensor, layer: FusedLayer) -> Tensor:
    """Return the outputs of a layer as one operation: [..., F] -> [..., outputs]."""
    flat = x if x.ndim == 2 else x.reshape(-1, x.shape[-1])
    rows = select_batch_rows(x.shape[:-1])
    if torch.is_grad_enabled():
        outputs = _FusedFunction.apply(layer, rows, flat, *layer.parameters())
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
