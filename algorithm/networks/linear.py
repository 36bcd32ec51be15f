"""The product of a linear layer, in forms that are faster than torch's for many rows.

Torch multiplies float32 matrices with MKL, which uses AVX-512 on Intel's processors only. oneDNN uses it on every
processor that has it: there its products take less than half the time. Both sum in float32. The order of the factors
and the layout of the results matter as much: x^T g with few columns of x takes a sixth of the time of g^T x, and the
gradient of a ReLU takes many times as long if its factors have different layouts. Small products are left to torch,
since a call from Python takes 20 microseconds longer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

# A product that is not left to torch has this many multiplications, or this many values in a factor or in the result.
MIN_MULTIPLICATIONS = 8_000_000
MIN_VALUES = 2**17

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]
NumpyFunction = Callable[[np.ndarray], np.ndarray]  # the numpy form of a module, for acting


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W^T + b, which is differentiable any number of times: [..., F] -> [..., units].

    Args:
        x: Inputs [..., F].
        weight: Weights [units, F].
        bias: Biases [units].
    """
    if not _is_large(x, weight):
        return nn.functional.linear(x, weight, bias)
    return _multiply_large(_multiply, x, weight, bias)


def linear_by_output(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return `linear` in a layout in which the rows of one output follow one another, not the outputs of one row.

    Operations on few outputs, such as a softmax, are then several times as fast.
    """
    if not _is_large(x, weight):
        return _multiply_by_output(x.reshape(-1, x.shape[-1]), weight, bias).view(*x.shape[:-1], -1)
    return _multiply_large(_multiply_by_output, x, weight, bias)


def make_numpy_form(module: Any) -> NumpyFunction | None:
    """Return the numpy form of a module, on views of its parameters; None if it has none."""
    return module.numpy() if hasattr(module, "numpy") else None


class Linear(nn.Linear):
    """A linear layer that computes with `linear`."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class _LargeLinear(torch.autograd.Function):
    """A large product. Its gradients are products by `linear`, so that they have gradients, too."""

    @staticmethod
    def forward(ctx: Any, multiply: Product, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return multiply(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor | None, Tensor | None, Tensor | None]:
        (gradient,), (x, weight) = gradients, ctx.saved_tensors
        _, needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            None,
            linear(gradient, weight.T) if needs_x else None,
            _multiply_transposed(gradient, x) if needs_weight else None,
            gradient.sum(0) if needs_bias else None,
        )


def _is_large(x: Tensor, weight: Tensor) -> bool:
    rows, (units, inputs) = x.shape[:-1].numel(), weight.shape
    return (
        (rows * inputs * units >= MIN_MULTIPLICATIONS or rows * max(inputs, units) >= MIN_VALUES)
        and x.dtype == weight.dtype == torch.float32
        and x.device.type == "cpu"
        and type(x) is Tensor  # not a symbol, as in an export
        and not torch.is_autocast_enabled("cpu")
    )


def _multiply_large(multiply: Product, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows = x.reshape(-1, x.shape[-1])
    if torch.is_grad_enabled():
        outputs = _LargeLinear.apply(multiply, rows, weight, bias)
    else:
        outputs = multiply(rows, weight, bias)
    if x.ndim == 2:
        return outputs
    # Not `view`: autograd copies a view several times if an activation changes it in place.
    return torch.ops.aten._unsafe_view(outputs, [*x.shape[:-1], len(weight)])


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if HAS_ONEDNN:
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return nn.functional.linear(x, weight, bias)


def _multiply_by_output(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    assert bias is not None
    return torch.addmm(bias.unsqueeze(1), weight, x.T).T


def _multiply_transposed(gradient: Tensor, x: Tensor) -> Tensor:
    """Return g^T x for g [rows, units] and x [rows, F]."""
    if x.shape[1] < gradient.shape[1]:
        return linear(x.T, gradient.T).T
    return linear(gradient.T, x.T)


HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
