"""The product of a linear layer, in forms that are faster than torch's for many rows.

Torch multiplies float32 matrices with MKL, which uses AVX-512 on Intel's processors only. oneDNN uses it on every
processor that has it: there its products take less than half the time, except on AMD's Zen 4, whose units are half as
wide. There both are equally fast, but oneDNN copies transposed factors and cannot write to a tensor that exists. On x86
processors without AVX-512, MKL is faster, by up to two times for a transposed factor. Both sum in float32.

The order of the factors and the layout of the results matter as much: x^T g with few columns of x takes a sixth of the
time of g^T x, and the gradient of a ReLU takes many times as long if its factors have different layouts. Small products
are left to torch, since a call from Python takes 20 microseconds longer.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from algorithm.networks.modules import NumpyFunction, make_numpy_linear

# A product that is not left to torch has this many multiplications, or this many values in a factor or in the result.
MIN_MULTIPLICATIONS = 8_000_000
MIN_VALUES = 2**17
# The order of the factors matters from this number of multiplications on, and does not change any number from this
# number of columns on: with fewer, MKL sums in another order.
MIN_ORDERED_MULTIPLICATIONS, MIN_ORDERED_COLUMNS = 1_000_000, 16

Product = Callable[[Tensor, Tensor, Any], Tensor]  # of rows, weight and bias


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W^T + b, which is differentiable any number of times: [..., F] -> [..., units]."""
    if not _is_large(x, weight):
        return nn.functional.linear(x, weight, bias)
    return _multiply_large(multiply, x, weight, bias)


def linear_by_output(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return `linear` in a layout in which the rows of one output follow one another, not the outputs of one row.

    Operations on few outputs, such as a softmax, are then several times as fast.
    """
    if not _is_large(x, weight):
        return multiply_by_output(x.reshape(-1, x.shape[-1]), weight, bias).view(*x.shape[:-1], -1)
    return _multiply_large(multiply_by_output, x, weight, bias)


class Linear(nn.Linear):
    """A linear layer that computes with `linear`; also as a layer of a fused operation (see FusedLayer)."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)

    def numpy(self) -> NumpyFunction:
        return make_numpy_linear(self)

    def run(self, x: Tensor, rows: object) -> tuple[Tensor, Tensor]:
        """Return `forward` for rows x [n, F], and x."""
        return linear(x, self.weight, self.bias), x

    def differentiate(
        self, gradient: Tensor, x: Tensor, needs_x: bool, needs_parameters: bool
    ) -> tuple[Tensor | None, list[Tensor | None]]:
        """Return the gradients of x, and of weight and bias; those that are not needed are None."""
        x_gradient = multiply_gradient(gradient, self.weight) if needs_x else None
        gradients: list[Tensor | None] = [None] if self.bias is None else [None, None]
        if needs_parameters:
            is_special = _is_large(x, self.weight) or is_ordered_product(len(x), *self.weight.shape)
            gradients[0] = multiply_transposed(gradient, x) if is_special else gradient.T @ x
            if self.bias is not None:
                gradients[1] = gradient.sum(0)
        return x_gradient, gradients


def multiply_gradient(gradient: Tensor, weight: Tensor) -> Tensor:
    """Return g W, the gradient of the inputs of a layer [n, F], for that of its outputs [n, units]."""
    if is_ordered_product(len(gradient), *weight.shape) and not uses_onednn(gradient, weight.T):
        return (weight.T @ gradient.T).T.contiguous()
    return multiply(gradient, weight.T)


class _LargeLinear(torch.autograd.Function):
    """A large product. Its gradients are products by `linear`, so that they have gradients, too."""

    @staticmethod
    def forward(ctx: Any, multiply: Product, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return multiply(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor | None, Tensor | None, Tensor | None]:
        (gradient,), (x, weight) = gradients, ctx.saved_tensors
        has_bias = len(ctx.next_functions) > 2
        return (
            None,
            linear(gradient, weight.T) if is_needed(ctx, 0) else None,
            multiply_transposed(gradient, x) if is_needed(ctx, 1) else None,
            gradient.sum(0) if has_bias and is_needed(ctx, 2) else None,
        )


def is_needed(ctx: Any, index: int) -> bool:
    """Return whether the backward pass that runs needs the gradient of an input of an autograd function.

    `ctx.needs_input_grad` is true for each trained weight, also in a pass for the gradients of other tensors only, such
    as that of a critic with respect to actions.

    Args:
        ctx: The context of the function's backward pass.
        index: The index of the input among those that are tensors.
    """
    node, _ = ctx.next_functions[index]
    if node is None or WILL_EXECUTE is None:
        return node is not None
    try:
        return bool(WILL_EXECUTE(node))
    except RuntimeError:  # the input is a leaf whose gradient torch.autograd.grad returns
        return True


def uses_onednn(x: Tensor, weight: Tensor) -> bool:
    """Return whether `linear` multiplies x [..., F] by a weight [units, F] with oneDNN."""
    return USES_ONEDNN and _is_large(x, weight)


def is_ordered_product(rows: int, units: int, inputs: int) -> bool:
    """Return whether the order of the factors matters in the gradients of a layer."""
    return MIN_ORDERED_COLUMNS <= inputs < units and rows * inputs * units >= MIN_ORDERED_MULTIPLICATIONS


def _is_large(x: Tensor, weight: Tensor) -> bool:
    if type(x) is not Tensor:  # a symbol, as in an export, whose number of rows must not be read
        return False
    rows, (units, inputs) = x.shape[:-1].numel(), weight.shape
    return (
        (rows * inputs * units >= MIN_MULTIPLICATIONS or rows * max(inputs, units) >= MIN_VALUES)
        and x.dtype == weight.dtype == torch.float32
        and x.device.type == "cpu"
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


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `linear` for rows x [n, F], without a gradient."""
    if uses_onednn(x, weight):
        return multiply_by_onednn(x, weight, bias)
    return nn.functional.linear(x, weight, bias)


def multiply_by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "none") -> Tensor:
    """Return `multiply` by oneDNN, and then an activation: "relu" or "none"."""
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, activation, [], "")


def multiply_by_output(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return `linear_by_output` for rows x [n, F]."""
    return torch.addmm(bias.unsqueeze(1), weight, x.T).T


def multiply_transposed(gradient: Tensor, x: Tensor, product: Callable[[Tensor, Tensor], Tensor] = linear) -> Tensor:
    """Return g^T x for g [rows, units] and x [rows, F], by a product that computes a b^T."""
    if x.shape[1] < gradient.shape[1]:
        return product(x.T, gradient.T).T
    return product(gradient.T, x.T)


def halves_avx512(cpuinfo: str) -> bool:
    """Return whether the processor that Linux describes in `cpuinfo` computes AVX-512 in two halves.

    Of those with AVX-512, it is AMD's Zen 4, of family 25; later ones have units of the full width.
    """
    return "AuthenticAMD" in cpuinfo and re.search(r"^cpu family\s*: 25$", cpuinfo, re.MULTILINE) is not None


def _read_cpuinfo() -> str:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:  # another system than Linux
        return ""


WILL_EXECUTE = getattr(torch._C, "_will_engine_execute_node", None)
HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
USES_ONEDNN = HAS_ONEDNN and torch.backends.cpu.get_cpu_capability() != "AVX2" and not halves_avx512(_read_cpuinfo())
