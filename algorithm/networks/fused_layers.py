"""Linear layers with a ReLU after each, as one operation, for which autograd calls one backward function.

The backward function computes the gradients of the ReLUs in place, and orders the factors of each product by their
sizes. The numbers are those of separate operations, bit for bit. These remain for all cases that `can_fuse` excludes;
for small layers they are faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from algorithm.networks.linear import MIN_MULTIPLICATIONS, compute_gradients, is_needed, linear, linear_by_output

Parameters = Sequence[Tensor]  # the weight and the bias of each layer


def can_fuse(x: Tensor, parameters: Parameters) -> bool:
    """Return whether `run_layers` runs the layers as one operation.

    It does so for at least one large layer on the CPU, without autocast, with trained parameters of the dtype of `x`,
    if gradients are recorded.
    """
    return (
        torch.is_grad_enabled()
        and x.shape[:-1].numel() * max(weight.numel() for weight in parameters[::2]) >= MIN_MULTIPLICATIONS
        and type(x) is Tensor  # not a symbol, as in an export
        and x.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and not torch.jit.is_tracing()
        and all(parameter.requires_grad and parameter.dtype == x.dtype for parameter in parameters)
    )


def run_layers(x: Tensor, parameters: Parameters, *, has_head: bool = False, by_output: bool = False) -> Tensor:
    """Return the output of layers, which is differentiable any number of times: [..., F] -> [..., units].

    Args:
        x: Inputs [..., F].
        parameters: Weight [units, inputs] and bias [units] of each layer.
        has_head: Whether the last layer has no ReLU.
        by_output: Whether the result of the last layer has the layout of `linear_by_output`; only with a head.
    """
    if not can_fuse(x, parameters):
        return _run_separately(x, parameters, has_head, by_output)
    outputs = _FusedLayers.apply(has_head, by_output, x.reshape(-1, x.shape[-1]), *parameters)
    return outputs if x.ndim == 2 else outputs.view(*x.shape[:-1], -1)


def _run_separately(x: Tensor, parameters: Parameters, has_head: bool, by_output: bool) -> Tensor:
    """Return the same as `run_layers`, by operations of which autograd records each."""
    layers = _split(parameters)
    for weight, bias in layers[:-1] if has_head else layers:
        x = linear(x, weight, bias).relu_()
    return (linear_by_output if by_output else linear)(x, *layers[-1]) if has_head else x


def _split(parameters: Parameters) -> list[tuple[Tensor, Tensor]]:
    return list(zip(parameters[::2], parameters[1::2], strict=True))


class _FusedLayers(torch.autograd.Function):
    """Layers on rows [n, F]. The results of the ReLUs are saved until the backward pass."""

    @staticmethod
    def forward(ctx: Any, has_head: bool, by_output: bool, x: Tensor, *parameters: Tensor) -> Tensor:
        layers = _split(parameters)
        hidden = [x]
        for weight, bias in layers[:-1] if has_head else layers:
            hidden.append(linear(hidden[-1], weight, bias).relu_())
        ctx.has_head, ctx.by_output = has_head, by_output
        ctx.save_for_backward(*hidden, *parameters)
        return (linear_by_output if by_output else linear)(hidden[-1], *layers[-1]) if has_head else hidden[-1]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
        n_layers = (len(ctx.next_functions) - 1) // 2
        saved, (gradient,) = ctx.saved_tensors, gradients
        hidden, parameters = saved[: -2 * n_layers], saved[-2 * n_layers :]
        needs_x = is_needed(ctx, 0)
        needs_parameters = any(is_needed(ctx, index) for index in range(1, 1 + 2 * n_layers))
        if torch.is_grad_enabled():  # the gradients have gradients, too
            return None, None, *_differentiate(ctx, hidden[0], parameters, needs_x, needs_parameters, gradient)
        results: list[Tensor | None] = []
        may_change = False  # the gradient of the outputs belongs to autograd
        for index in reversed(range(n_layers)):
            if index < len(hidden) - 1:  # a ReLU follows the layer
                gradient = _mask(gradient, hidden[index + 1], in_place=may_change)
            bias_gradient = gradient.sum(0) if needs_parameters else None
            gradient, weight_gradient = compute_gradients(
                gradient,
                hidden[index],
                parameters[2 * index],
                needs_x=index > 0 or needs_x,
                needs_weight=needs_parameters,
            )
            results += [bias_gradient, weight_gradient]
            may_change = True
        return None, None, gradient, *reversed(results)


def _mask(gradient: Tensor, output: Tensor, *, in_place: bool) -> Tensor:
    """Return the gradient of the inputs of a ReLU, given that of its outputs."""
    if in_place:
        return torch.ops.aten.threshold_backward.grad_input(gradient, output, 0, grad_input=gradient)
    return torch.ops.aten.threshold_backward(gradient, output, 0)


def _differentiate(
    ctx: Any, x: Tensor, parameters: Parameters, needs_x: bool, needs_parameters: bool, gradient: Tensor
) -> list[Tensor | None]:
    """Return the gradients of the inputs and of each parameter, which have gradients of their own."""
    outputs = _run_separately(x, parameters, ctx.has_head, ctx.by_output)
    needed = [x] * needs_x + [*parameters] * needs_parameters
    results = torch.autograd.grad(outputs, needed, gradient, create_graph=True)
    x_results, parameter_results = results[:needs_x], results[needs_x:]
    return [*(x_results or [None]), *(parameter_results or [None] * len(parameters))]
