"""Residual layers with normalization, and scaling of inputs to the unit sphere."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.networks.constraints import Constraint, RowNorm
from algorithm.networks.linear import Linear, NumpyFunction
from algorithm.networks.mlp import check_sizes, make_numpy_linear
from algorithm.networks.normalization import RmsNorm, check_norm, make_norm


@dataclass(frozen=True)
class Residual:
    """A factory of residual layers, as body, policy or critic: `Residual(128, blocks=2)`. [..., F] -> [..., width].

    A linear layer maps the input to `width` features, then come the blocks x + relu(norm(W2 relu(norm(W1 x)))), then
    RMSNorm (FlashSAC). With a norm over batches, the input is normalized, too; with another one, features are best
    normalized by the encoder, as by `Vector(normalize=True)`. The weights start orthogonal.

    Args:
        width: Features between blocks, at least 1.
        blocks: Number of blocks, at least 1; 2 by default.
        expansion: Hidden features of a block, in multiples of `width`; 4 by default.
        norm: "batch" (default), "batch_renorm", "layer", "rms", or None for none. See `normalization`; with a norm the
            linear layers have no biases.
        unit_weights: Whether each row of each linear layer keeps the norm 1, and the weights of each norm the norm
            sqrt(features), after every step of the optimizer; False by default.

    Raises:
        ValueError: A size below 1, an unknown norm, or unit weights without a norm.
    """

    width: int
    blocks: int = 2
    _: KW_ONLY
    expansion: int = 4
    norm: str | None = "batch"
    unit_weights: bool = False

    def __post_init__(self) -> None:
        check_sizes("Residual", self.width, self.blocks, self.expansion)
        check_norm("Residual", self.norm)
        if self.unit_weights and self.norm is None:
            raise ValueError("Residual has unit_weights without a norm, which sets the scale of features: give a norm")

    def __call__(self, size: int) -> ResidualLayers:
        return ResidualLayers(self, size)


class ResidualLayers(nn.Module):
    """The layers of a Residual: [..., F] -> [..., size]. A norm that it does not have is None."""

    def __init__(self, settings: Residual, inputs: int):
        super().__init__()
        self.size = width = settings.width
        normalizes_batches = settings.norm in ("batch", "batch_renorm")
        self.input_norm: Any = _make_norm(settings, inputs) if normalizes_batches else None
        self.input = _make_linear(settings, inputs, width, gain=1.0)
        self.blocks: Any = nn.ModuleList(ResidualBlock(settings) for _ in range(settings.blocks))
        self.output_norm: Any = RmsNorm(width, unit_weights=settings.unit_weights) if settings.norm else None

    def forward(self, x: Tensor) -> Tensor:
        x = self.input(self.input_norm(x) if self.input_norm else x)
        for block in self.blocks:
            x = block(x)
        return self.output_norm(x) if self.output_norm else x

    def numpy(self) -> NumpyFunction:
        """Return `forward` in numpy, on views of the parameters and running statistics."""
        norms = [norm.numpy() if norm else None for norm in (self.input_norm, self.output_norm)]
        blocks = [block.numpy() for block in self.blocks]
        parts = [part for part in (norms[0], make_numpy_linear(self.input), *blocks, norms[1]) if part]

        def forward(x: np.ndarray) -> np.ndarray:
            for part in parts:
                x = part(x)
            return x

        return forward


class ResidualBlock(nn.Module):
    """A block of a Residual: x + relu(norm(W2 relu(norm(W1 x)))), [..., width] -> [..., width]."""

    def __init__(self, settings: Residual):
        super().__init__()
        width, hidden = settings.width, settings.width * settings.expansion
        self.expand, self.expand_norm = _make_linear(settings, width, hidden, gain=2**0.5), _make_norm(settings, hidden)
        self.reduce, self.reduce_norm = _make_linear(settings, hidden, width, gain=2**0.5), _make_norm(settings, width)

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for linear, norm in ((self.expand, self.expand_norm), (self.reduce, self.reduce_norm)):
            y = linear(y)
            y = torch.relu_(norm(y) if norm else y)
        return x + y

    def numpy(self) -> NumpyFunction:
        """Return `forward` in numpy, on views of the parameters and running statistics."""
        layers = [
            (make_numpy_linear(linear), norm.numpy() if norm else lambda x: x)
            for linear, norm in ((self.expand, self.expand_norm), (self.reduce, self.reduce_norm))
        ]

        def forward(x: np.ndarray) -> np.ndarray:
            y = x
            for linear, norm in layers:
                y = norm(linear(y))
                y = np.maximum(y, 0, out=y)
            return x + y

        return forward


class ResidualLinear(Linear):
    """A linear layer, whose rows of weights may keep the norm 1."""

    def __init__(self, settings: Residual, inputs: int, outputs: int):
        super().__init__(inputs, outputs, bias=settings.norm is None)
        self.constraint: Constraint | None = RowNorm(outputs, 1.0) if settings.unit_weights else None


def _make_linear(settings: Residual, inputs: int, outputs: int, gain: float) -> ResidualLinear:
    """Return a linear layer with orthogonal weights times `gain`, or rows of norm 1."""
    layer = ResidualLinear(settings, inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    if layer.constraint:
        layer.constraint(layer.weight.data)
    return layer


def _make_norm(settings: Residual, size: int) -> Any:
    return make_norm(settings.norm, size, unit_weights=settings.unit_weights) if settings.norm else None
