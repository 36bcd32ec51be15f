"""Fully connected layers, in torch for learning and on views of the same numbers in numpy for acting."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

MAX_SIZE = 2**31 - 1

# On what a layer has just put out, which nothing else reads: in place where its gradient is known from the result.
ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[np.ndarray], np.ndarray]]] = {
    "relu": (torch.relu_, lambda x: np.maximum(x, 0, out=x)),
    "tanh": (torch.tanh_, lambda x: np.tanh(x, out=x)),
}


class Mlp:
    """Factory of hidden layers with the given numbers of units: `Mlp(64, 64)`."""

    def __init__(self, *units: int, activation: str = "relu"):
        check_layers("Mlp", units, activation)
        self.units = units
        self.activation = activation

    def __call__(self, size: int) -> nn.Module:
        layers = [make_orthogonal_linear(inputs, units, gain=2**0.5) for inputs, units in pairwise((size, *self.units))]
        return LayerStack(layers, make_numpy_linear, self.units[-1], self.activation)


class LayerStack(nn.Module):
    """[..., F] -> [..., size]: one layer after the other, the activation behind each.

    `make_numpy_layer` makes of a layer a function of arrays, on views of its numbers.
    """

    def __init__(
        self,
        layers: Iterable[nn.Module],
        make_numpy_layer: Callable[[Any], Callable[[np.ndarray], np.ndarray]],
        size: int,
        activation: str,
    ):
        super().__init__()
        self.size = size
        self.layers: Any = nn.ModuleList(layers)
        self.make_numpy_layer = make_numpy_layer
        self.activate, self.activate_numpy = ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.activate(layer.forward(x))  # a call would look for hooks
        return x

    def numpy(self) -> Callable[[np.ndarray], np.ndarray]:
        """The same in numpy, on views of the parameters."""
        layers = [self.make_numpy_layer(layer) for layer in self.layers]
        activate = self.activate_numpy

        def forward(x: np.ndarray) -> np.ndarray:
            for layer in layers:
                x = activate(layer(x))
            return x

        return forward


def check_activation(name: str) -> str:
    """The name. Raises ValueError where there is no such activation."""
    if name not in ACTIVATIONS:
        raise ValueError(f"activation {name!r} is unknown; there are {', '.join(ACTIVATIONS)}")
    return name


def check_layers(factory: str, units: tuple[int, ...], activation: str) -> None:
    """Raises ValueError for layers that cannot be, naming the `factory` they were given to."""
    check_activation(activation)
    if not units:
        raise ValueError(f"{factory} needs the units of at least one layer, as in {factory}(64, 64)")
    check_sizes(factory, *units)


def check_sizes(factory: str, *sizes: Any) -> None:
    """Raise ValueError, naming the `factory` they were given to, for sizes that no layer has."""
    for size in sizes:
        if not isinstance(size, int | np.integer) or isinstance(size, bool) or not 1 <= size <= MAX_SIZE:
            raise ValueError(
                f"{factory} has the size {size!r}; it must be an integer, at least 1 and at most {MAX_SIZE:,}"
            )


def make_orthogonal_linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
    """A linear layer with orthogonal weights and no bias at the start."""
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def make_numpy_linear(layer: nn.Linear, outputs: int | None = None) -> Callable[[np.ndarray], np.ndarray]:
    """The first `outputs` of a linear layer as a function on views of its numbers: it follows every update."""
    weight = layer.weight.detach().numpy()[:outputs].T
    bias = layer.bias.detach().numpy()[:outputs]
    return lambda x: x @ weight + bias
