"""Layers with batch norms as one operation, for which autograd calls one backward function.

Each layer computes its outputs and what its gradient needs, and has a hand-written
gradient, which is that of the same modules by autograd up to rounding. The modules remain for all cases that
`can_fuse` excludes. The gradients are differentiable once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from algorithm.networks.fast_products import compute_gradients, is_needed, linear, linear_by_output
from algorithm.networks.normalization import BatchMoments, BatchNorm, RmsNorm, RowWeights, get_batch_rows

Gradients = tuple[Tensor | None, list[Tensor | None]]  # of the inputs, and of each parameter

threshold_backward = torch.ops.aten.threshold_backward.default


class FusedLayer(ABC):
    """A layer on rows [n, F], with its parameters in the order of their gradients."""

    parameters: Sequence[Tensor]

    @abstractmethod
    def run(self, x: Tensor, rows: RowWeights | None, commits: bool) -> tuple[Tensor, Any]:
        """Return the outputs, and what `differentiate` needs, which does not contain the outputs.

        Otherwise they would keep the graph alive, and it them, until Python collects garbage.

        Args:
            x: The inputs [n, F].
            rows: The weights of the rows in the statistics of batch norms; None for running statistics.
            commits: Whether running statistics learn from the batch.
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


class FusedLinear(FusedLayer):
    """A linear layer, with a ReLU after it if `activates`; `by_output` is the layout of `linear_by_output`."""

    def __init__(self, layer: nn.Linear, *, activates: bool = False, by_output: bool = False):
        self.weight, self.bias = layer.weight, layer.bias
        self.parameters = [self.weight] if self.bias is None else [self.weight, self.bias]
        self.activates, self.multiply = activates, linear_by_output if by_output else linear

    def run(self, x: Tensor, rows: RowWeights | None, commits: bool) -> tuple[Tensor, Any]:
        y = self.multiply(x, self.weight, self.bias)
        return (y.relu_(), (x, y)) if self.activates else (y, (x, None))

    def differentiate(self, gradient: Tensor, saved: Any, needs_x: bool, needs_parameters: bool) -> Gradients:
        x, y = saved
        if self.activates:
            gradient = threshold_backward(gradient, y, 0)
        x_gradient, weight_gradient = compute_gradients(
            gradient, x, self.weight, needs_x=needs_x, needs_weight=needs_parameters
        )
        if self.bias is None:
            return x_gradient, [weight_gradient]
        return x_gradient, [weight_gradient, gradient.sum(0) if needs_parameters else None]


class FusedBatchNorm(FusedLayer):
    """A batch norm, with a ReLU after it if `activates`; by running statistics, or by those of the batch."""

    def __init__(self, norm: BatchNorm, *, activates: bool = False):
        self.norm, self.activates, self.parameters = norm, activates, [norm.weight, norm.bias]

    def run(self, x: Tensor, rows: RowWeights | None, commits: bool) -> tuple[Tensor, Any]:
        if rows is None:
            batch, correction, (weight, shift) = None, None, self.norm.compute_affine()
            y = torch.addcmul(shift, x, weight)
        else:
            batch = BatchMoments.compute(x, rows.weights, self.norm.epsilon)
            correction = self.norm.prepare_batch(batch, rows if commits else None)
            weight, bias = self.norm.correct_parameters(correction)
            y = batch.normalize(weight, bias)
        saved = (x, y if self.activates else None, batch, weight, correction)
        return (y.relu_() if self.activates else y), saved

    def differentiate(self, gradient: Tensor, saved: Any, needs_x: bool, needs_parameters: bool) -> Gradients:
        x, y, batch, weight, correction = saved
        if self.activates:
            gradient = threshold_backward(gradient, y, 0)
        if batch is None:
            return self.norm.differentiate_affine(gradient, x, weight, needs_x, needs_parameters)
        x_gradient, weight_gradient, bias_gradient = batch.differentiate(
            gradient, weight, needs_x=needs_x, needs_weight=needs_parameters
        )
        if correction and needs_parameters:
            r, d = correction
            weight_gradient = torch.addcmul(weight_gradient * r, bias_gradient, d)
        return x_gradient, [weight_gradient, bias_gradient]


class FusedRmsNorm(FusedLayer):
    """An RMSNorm."""

    def __init__(self, norm: RmsNorm):
        self.norm, self.parameters = norm, [norm.weight]

    def run(self, x: Tensor, rows: RowWeights | None, commits: bool) -> tuple[Tensor, Any]:
        inverse = self.norm.compute_inverse(x)
        normalized = x * inverse
        return normalized * self.parameters[0], (normalized, inverse)

    def differentiate(self, gradient: Tensor, saved: Any, needs_x: bool, needs_parameters: bool) -> Gradients:
        normalized, inverse = saved
        weight_gradient = (gradient * normalized).sum(0) if needs_parameters else None
        if not needs_x:
            return None, [weight_gradient]
        scaled = gradient * self.parameters[0]
        mean = (scaled * normalized).mean(-1, keepdim=True)
        return scaled.addcmul_(normalized, mean, value=-1).mul_(inverse), [weight_gradient]


class FusedSequence(FusedLayer):
    """Layers that follow each other."""

    def __init__(self, *layers: FusedLayer):
        self.layers = layers
        self.parameters = [parameter for layer in layers for parameter in layer.parameters]

    def run(self, x: Tensor, rows: RowWeights | None, commits: bool) -> tuple[Tensor, Any]:
        saved = []
        for layer in self.layers:
            x, layer_saved = layer.run(x, rows, commits)
            saved.append(layer_saved)
        return x, saved

    def differentiate(self, gradient: Tensor, saved: Any, needs_x: bool, needs_parameters: bool) -> Gradients:
        result: Tensor | None = gradient
        gradients: list[Tensor | None] = []
        for index in reversed(range(len(self.layers))):
            assert result is not None  # the gradient of the inputs of the next layer
            result, part = self.layers[index].differentiate(
                result, saved[index], index > 0 or needs_x, needs_parameters
            )
            gradients[:0] = part
        return result, gradients


class FusedResidual(FusedSequence):
    """The inputs plus the outputs of layers that follow each other."""

    def run(self, x: Tensor, rows: RowWeights | None, commits: bool) -> tuple[Tensor, Any]:
        y, saved = super().run(x, rows, commits)
        return x + y, saved

    def differentiate(self, gradient: Tensor, saved: Any, needs_x: bool, needs_parameters: bool) -> Gradients:
        x_gradient, gradients = super().differentiate(gradient, saved, needs_x, needs_parameters)
        return None if x_gradient is None else x_gradient.add_(gradient), gradients


def can_fuse(x: Tensor, layers: FusedLayer) -> bool:
    """Return whether `run_fused` runs layers on x as one operation.

    It does so on the CPU, in float32, without autocast, if no gradients are recorded or all parameters are trained.
    """
    return (
        type(x) is Tensor  # not a symbol, as in an export
        and x.dtype == torch.float32
        and x.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and not torch.jit.is_tracing()
        and (not torch.is_grad_enabled() or all(parameter.requires_grad for parameter in layers.parameters))
    )


def run_fused(x: Tensor, layers: FusedLayer) -> Tensor:
    """Return the outputs of layers: [..., F] -> [..., outputs]."""
    flat = x if x.ndim == 2 else x.reshape(-1, x.shape[-1])
    batch_rows = get_batch_rows()
    rows, commits = (batch_rows.select(x.shape[:-1]), batch_rows.commits) if batch_rows else (None, False)
    if torch.is_grad_enabled():
        outputs = _FusedFunction.apply(layers, rows, commits, flat, *layers.parameters)
    else:
        outputs, _ = layers.run(flat, rows, commits)
    return outputs if x.ndim == 2 else outputs.view(*x.shape[:-1], -1)


class _FusedFunction(torch.autograd.Function):
    """Layers on rows [n, F]."""

    @staticmethod
    def forward(
        ctx: Any, layers: FusedLayer, rows: RowWeights | None, commits: bool, x: Tensor, *parameters: Tensor
    ) -> Tensor:
        outputs, ctx.saved = layers.run(x, rows, commits)
        ctx.layers = layers
        ctx.save_for_backward(x, *parameters)  # so that autograd finds changes of them
        return outputs

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        _, *parameters = ctx.saved_tensors
        needs_parameters = any(is_needed(ctx, index) for index in range(1, 1 + len(parameters)))
        x_gradient, results = ctx.layers.differentiate(gradients[0], ctx.saved, is_needed(ctx, 0), needs_parameters)
        return None, None, None, x_gradient, *results
