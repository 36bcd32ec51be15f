"""Residual layers with normalization, scaling of inputs to the unit sphere, and chains of layers."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.networks.blueprint import LayersFactory, build_module
from algorithm.networks.constraints import RowNorm, limit_spectral_norm, set_constraint
from algorithm.networks.fast_products import Linear
from algorithm.networks.fused_layers import FusedRelu, FusedResidual, FusedSequence, can_fuse, run_fused
from algorithm.networks.mlp import check_sizes
from algorithm.networks.normalization import RmsNorm, check_norm, make_norm
from algorithm.networks.numpy_forms import NumpyFunction, make_numpy_chain


@dataclass(frozen=True)
class Residual:
    """A factory of residual layers, as body, policy or critic: `Residual(128, blocks=2)`. [..., F] -> [..., width].

    A linear layer maps the input to `width` features. After it are the blocks x + relu(norm(W2 relu(norm(W1 x)))) and,
    unless `norm` is None, RMSNorm (FlashSAC, arXiv 2604.04539). With `batch` and `batch_renorm` the input is
    normalized, too; otherwise the encoder should normalize it, as `Vector(normalize=True)` does. The initial weights
    are orthogonal.

    Args:
        width: Features between blocks, at least 1.
        blocks: Number of blocks, at least 1; 2 by default.
        expansion: Hidden features of a block, in multiples of `width`; 4 by default.
        norm: "batch" (default), "batch_renorm", "layer", "rms", or None for none. With a norm the linear layers have no
            biases.
        unit_weights: Whether the weights of each unit are scaled to length 1, and scale and shift of each norm together
            to length sqrt(features), after every step of the optimizer; False by default.
        spectral_norm: Whether the weights of each linear layer keep a spectral norm of at most 1, as those of Mlp;
            False by default.

    Raises:
        ValueError: A size below 1, an unknown norm, unit weights without a norm, or with a spectral norm.
    """

    width: int
    blocks: int = 2
    _: KW_ONLY
    expansion: int = 4
    norm: str | None = "batch"
    unit_weights: bool = False
    spectral_norm: bool = False

    def __post_init__(self) -> None:
        check_sizes("Residual", self.width, self.blocks, self.expansion)
        check_norm("Residual", self.norm)
        if self.unit_weights and self.norm is None:
            raise ValueError("Residual has unit_weights without a norm, which sets the scale of features: give a norm")
        if self.unit_weights and self.spectral_norm:
            raise ValueError("Residual has unit_weights and spectral_norm: give one or the other")

    def __call__(self, size: int) -> ResidualLayers:
        return ResidualLayers(self, size)


class ResidualLayers(nn.Module):
    """The layers of a Residual: [..., F] -> [..., size]. A missing norm is None."""

    def __init__(self, settings: Residual, inputs: int):
        super().__init__()
        self.size = width = settings.width
        normalizes_batches = settings.norm in ("batch", "batch_renorm")
        self.input_norm: Any = _make_norm(settings, inputs) if normalizes_batches else None
        self.input: Any = _make_linear(settings, inputs, width, gain=1.0)
        blocks = [ResidualBlock(settings) for _ in range(settings.blocks)]
        self.blocks: Any = nn.ModuleList(blocks)
        self.output_norm: Any = RmsNorm(width, unit_weights=settings.unit_weights) if settings.norm else None
        # The layers as one operation, if they have batch norms.
        self.fused: FusedSequence | None = None
        if normalizes_batches:
            fused = (block.make_fused() for block in blocks)
            layers: list[Any] = [self.input_norm, self.input, *fused, self.output_norm]
            self.fused = FusedSequence(*layers)

    def forward(self, x: Tensor) -> Tensor:
        if self.fused and can_fuse(x, self.fused):
            return run_fused(x, self.fused)
        x = self.input(self.input_norm(x) if self.input_norm else x)
        for block in self.blocks:
            x = block(x)
        return self.output_norm(x) if self.output_norm else x

    def numpy(self) -> NumpyFunction | None:
        """Return `forward` in numpy, on views of the parameters and running statistics."""
        return make_numpy_chain(self.input_norm, self.input, *self.blocks, self.output_norm)


class ResidualBlock(nn.Module):
    """A block of a Residual: x + relu(norm(W2 relu(norm(W1 x)))), [..., width] -> [..., width]."""

    def __init__(self, settings: Residual):
        super().__init__()
        width, hidden = settings.width, settings.width * settings.expansion
        self.expand, self.expand_norm = _make_linear(settings, width, hidden, gain=2**0.5), _make_norm(settings, hidden)
        self.reduce, self.reduce_norm = _make_linear(settings, hidden, width, gain=2**0.5), _make_norm(settings, width)
        self.layers = ((self.expand, self.expand_norm), (self.reduce, self.reduce_norm))

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for linear, norm in self.layers:
            y = linear(y)
            y = torch.relu_(norm(y) if norm else y)
        return x + y

    def make_fused(self) -> FusedResidual:
        """Return the block, with batch norms, as a layer of a fused operation."""
        return FusedResidual(*(part for linear, norm in self.layers for part in (linear, norm, FusedRelu())))

    def numpy(self) -> NumpyFunction:
        """Return `forward` in numpy, on views of the parameters and running statistics."""
        layers = [(linear.numpy(), norm.numpy() if norm else lambda x: x) for linear, norm in self.layers]

        def forward(x: np.ndarray) -> np.ndarray:
            y = x
            for linear, norm in layers:
                y = norm(linear(y))
                y = np.maximum(y, 0, out=y)
            return x + y

        return forward


@dataclass(frozen=True)
class UnitSphere:
    """A factory of layers without parameters: append a constant, then scale each row to norm 1. [..., F] -> [..., F+1].

    With the constant, the result still determines the length of the row (Lee et al. 2025, arXiv 2502.15280, SimbaV2).

    Args:
        shift: The constant, above 0; 3 by default, the paper's value.

    Raises:
        ValueError: A `shift` that is not above 0.
    """

    shift: float = 3.0

    def __post_init__(self) -> None:
        if not self.shift > 0:
            raise ValueError(f"UnitSphere's shift is {self.shift}; it must be above 0")

    def __call__(self, size: int) -> UnitSphereLayers:
        return UnitSphereLayers(size, self.shift)


class UnitSphereLayers(nn.Module):
    """The layers of a UnitSphere: [..., F] -> [..., F+1]."""

    def __init__(self, inputs: int, shift: float):
        super().__init__()
        self.size, self.shift = inputs + 1, shift

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat((x, 0 * x[..., :1] + self.shift), -1)
        return x / x.square().sum(-1, keepdim=True).sqrt()

    def numpy(self) -> NumpyFunction:
        """Return `forward` in numpy."""

        def forward(x: np.ndarray) -> np.ndarray:
            x = np.concatenate((x, np.full_like(x[..., :1], self.shift)), -1)
            return x / np.sqrt(np.square(x).sum(-1, keepdims=True))

        return forward


class Chain:
    """A factory of layers that follow each other: `Chain(UnitSphere(), Residual(128))`.

    Args:
        factories: Factories of layers, at least one.

    Raises:
        ValueError: No factory.
    """

    def __init__(self, *factories: LayersFactory):
        if not factories:
            raise ValueError("Chain needs at least one factory of layers, as in Chain(UnitSphere(), Residual(128))")
        self.factories = factories

    def __call__(self, size: int) -> ChainedLayers:
        layers: list[Any] = []
        for factory in self.factories:
            layers.append(build_module(factory, size, "forward"))
            size = layers[-1].size
        return ChainedLayers(layers, size)


class ChainedLayers(nn.Sequential):
    """The layers of a Chain: [..., F] -> [..., size]."""

    def __init__(self, layers: list[nn.Module], size: int):
        super().__init__(*layers)
        self.size = size

    def numpy(self) -> NumpyFunction | None:
        """Return `forward` in numpy, on views of the parameters; None if a part has no numpy form."""
        return make_numpy_chain(*self)


def _make_linear(settings: Residual, inputs: int, outputs: int, gain: float) -> Linear:
    """Return a linear layer with orthogonal weights times `gain`, and the constraint of the settings."""
    layer = Linear(inputs, outputs, bias=settings.norm is None)
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    if settings.unit_weights:
        set_constraint(layer, RowNorm(outputs, 1.0))
    elif settings.spectral_norm:
        limit_spectral_norm(layer)
    return layer


def _make_norm(settings: Residual, size: int) -> Any:
    return make_norm(settings.norm, size, unit_weights=settings.unit_weights) if settings.norm else None
