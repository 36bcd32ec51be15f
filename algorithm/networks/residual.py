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
from algorithm.networks.mlp import LayerStack, Relu, check_sizes
from algorithm.networks.normalization import Gradients, RmsNorm, RowWeights, check_norm, make_norm
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

    def __call__(self, size: int) -> LayerStack:
        input_norm = self._make_norm(size) if self.norm in ("batch", "batch_renorm") else None
        linear = self._make_linear(size, self.width, gain=1.0)
        blocks = [self._make_block() for _ in range(self.blocks)]
        output_norm = RmsNorm(self.width, unit_weights=self.unit_weights) if self.norm else None
        return LayerStack(
            [part for part in (input_norm, linear, *blocks, output_norm) if part],
            self.width,
            input_norm=input_norm,
            input=linear,
            blocks=nn.ModuleList(blocks),
            output_norm=output_norm,
        )

    def _make_block(self) -> ResidualBlock:
        hidden = self.width * self.expansion
        expand, expand_norm = self._make_linear(self.width, hidden, gain=2**0.5), self._make_norm(hidden)
        reduce, reduce_norm = self._make_linear(hidden, self.width, gain=2**0.5), self._make_norm(self.width)
        return ResidualBlock(
            [part for part in (expand, expand_norm, Relu(), reduce, reduce_norm, Relu()) if part],
            self.width,
            expand=expand,
            expand_norm=expand_norm,
            reduce=reduce,
            reduce_norm=reduce_norm,
        )

    def _make_linear(self, inputs: int, outputs: int, gain: float) -> Linear:
        """Return a linear layer with orthogonal weights times `gain`, and the constraint of the settings."""
        layer = Linear(inputs, outputs, bias=self.norm is None)
        nn.init.orthogonal_(layer.weight, gain)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
        if self.unit_weights:
            set_constraint(layer, RowNorm(outputs, 1.0))
        elif self.spectral_norm:
            limit_spectral_norm(layer)
        return layer

    def _make_norm(self, size: int) -> Any:
        return make_norm(self.norm, size, unit_weights=self.unit_weights) if self.norm else None


class ResidualBlock(LayerStack):
    """The inputs plus the outputs of layers that follow each other: [..., size] -> [..., size]."""

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)

    def numpy(self) -> NumpyFunction | None:
        compute = super().numpy()
        return compute and (lambda x: x + compute(x))

    def run(self, x: Tensor, rows: RowWeights | None) -> tuple[Tensor, Any]:
        y, saved = super().run(x, rows)
        return x + y, saved

    def differentiate(self, gradient: Tensor, saved: Any, needs_x: bool, needs_parameters: bool) -> Gradients:
        x_gradient, gradients = super().differentiate(gradient, saved, needs_x, needs_parameters)
        return None if x_gradient is None else x_gradient.add_(gradient), gradients


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
