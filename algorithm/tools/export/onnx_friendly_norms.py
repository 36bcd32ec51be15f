"""Replacements of normalized layers for the export: batch norms are folded into the linear layers next to them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from algorithm.networks.mlp import NormalizedStack
from algorithm.networks.normalization import BatchNorm, LayerNorm, RmsNorm
from algorithm.networks.residual import ResidualBlock, ResidualLayers


def fold_batch_norms(linear: nn.Linear, before: Any, after: Any) -> tuple[nn.Module, Any, Any]:
    """Return one linear layer in place of a linear layer and the batch norms before and after it.

    Args:
        linear: Linear layer.
        before: Norm of its input; None if missing.
        after: Norm of its output; None if missing.

    Returns:
        The layer, and the norms before and after it that are not folded, since they are not batch norms.
    """
    weight = linear.weight.detach().double()
    bias = torch.zeros(len(weight), dtype=torch.float64) if linear.bias is None else linear.bias.detach().double()
    if isinstance(before, BatchNorm):
        scale, shift = compute_exact_affine(before)
        weight, bias, before = weight * scale, bias + weight @ shift, None
    if isinstance(after, BatchNorm):
        scale, shift = compute_exact_affine(after)
        weight, bias, after = weight * scale.unsqueeze(1), bias * scale + shift, None
    folded = nn.Linear(linear.in_features, linear.out_features).requires_grad_(False)
    folded.weight.copy_(weight)
    folded.bias.copy_(bias)
    return folded, before, after


def compute_exact_affine(norm: BatchNorm) -> tuple[Tensor, Tensor]:
    """Return scale and shift [F] of a batch norm with running statistics, in float64."""
    mean, variance = norm.running[: 2 * norm.size].double().chunk(2)
    scale = norm.weight.detach().double() / (variance + norm.epsilon).sqrt()
    return scale, norm.bias.detach().double() - mean * scale


def _chain(*layers: nn.Module | None) -> nn.Sequential:
    """Return the layers that are not None, one after the other."""
    return nn.Sequential(*(layer for layer in layers if layer is not None))


class OnnxResidual(nn.Module):
    """The replacement of ResidualLayers."""

    def __init__(self, layers: ResidualLayers):
        super().__init__()
        linear, before, _ = fold_batch_norms(layers.input, layers.input_norm, None)
        self.layers = _chain(before, linear, *layers.blocks, layers.output_norm)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class OnnxResidualBlock(nn.Module):
    """The replacement of a ResidualBlock."""

    def __init__(self, block: ResidualBlock):
        super().__init__()
        expand, _, expand_norm = fold_batch_norms(block.expand, None, block.expand_norm)
        reduce, _, reduce_norm = fold_batch_norms(block.reduce, None, block.reduce_norm)
        self.layers = _chain(expand, expand_norm, nn.ReLU(), reduce, reduce_norm, nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class OnnxNormalizedStack(nn.Module):
    """The replacement of a NormalizedStack; its last batch norm has no linear layer after it."""

    def __init__(self, stack: NormalizedStack):
        super().__init__()
        self.activate = stack.activate
        folded = [
            fold_batch_norms(layer, norm, None) for layer, norm in zip(stack.layers, stack.norms[:-1], strict=True)
        ]
        self.layers: Any = nn.ModuleList(_chain(before, linear) for linear, before, _ in folded)
        self.norm: Any = stack.norms[-1]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.activate(layer(x))
        return self.norm(x)


class OnnxBatchNorm(nn.Module):
    """A BatchNorm with running statistics as a product and a sum."""

    def __init__(self, norm: BatchNorm):
        super().__init__()
        scale, shift = compute_exact_affine(norm)
        self.scale: Tensor
        self.shift: Tensor
        self.register_buffer("scale", scale.float())
        self.register_buffer("shift", shift.float())

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.shift


class OnnxLayerNorm(nn.Module):
    """A LayerNorm in elementary operators."""

    def __init__(self, norm: LayerNorm):
        super().__init__()
        self.weight, self.bias, self.epsilon = norm.weight, norm.bias, norm.eps

    def forward(self, x: Tensor) -> Tensor:
        centered = x - x.mean(-1, keepdim=True)
        return centered / ((centered * centered).mean(-1, keepdim=True) + self.epsilon).sqrt() * self.weight + self.bias


class OnnxRmsNorm(nn.Module):
    """An RmsNorm in elementary operators."""

    def __init__(self, norm: RmsNorm):
        super().__init__()
        self.weight, self.epsilon = norm.weight, norm.epsilon

    def forward(self, x: Tensor) -> Tensor:
        return x / ((x * x).mean(-1, keepdim=True) + self.epsilon).sqrt() * self.weight
