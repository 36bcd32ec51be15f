"""Fully connected layers, in torch for learning and in numpy on views of the same parameters for acting."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

MAX_SIZE = 2**31 - 1

NumpyFunction = Callable[[np.ndarray], np.ndarray]

# Each activation works in place on the output of a layer, which nothing else reads: the gradients of relu and tanh
# follow from their results.
ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], NumpyFunction]] = {
    "relu": (torch.relu_, lambda x: np.maximum(x, 0, out=x)),
    "tanh": (torch.tanh_, lambda x: np.tanh(x, out=x)),
}


class Mlp:
    """A factory of fully connected hidden layers, an activation after each: `Mlp(64, 64)`.

    The weights start orthogonal with gain sqrt(2), the biases 0. [..., F] -> [..., units of the last layer].

    Args:
        units: Units of each layer, at least one layer.
        activation: "relu" (default) or "tanh".

    Raises:
        ValueError: No layer, a size below 1, or an unknown activation.
    """

    def __init__(self, *units: int, activation: str = "relu"):
        check_layers("Mlp", units, activation)
        self.units = units
        self.activation = activation

    def __call__(self, size: int) -> LayerStack:
        layers = [make_orthogonal_linear(inputs, units, gain=2**0.5) for inputs, units in pairwise((size, *self.units))]
        return LayerStack(layers, make_numpy_linear, self.units[-1], self.activation)


class LayerStack(nn.Module):
    """A sequence of layers with an activation after each: [..., F] -> [..., size].

    `make_numpy_layer` returns a layer as a function of numpy arrays on views of its parameters.
    """

    def __init__(
        self,
        layers: Iterable[nn.Module],
        make_numpy_layer: Callable[[Any], NumpyFunction],
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
            x = self.activate(layer.forward(x))  # faster than layer(x), which checks for hooks
        return x

    def numpy(self) -> NumpyFunction:
        """Return `forward` in numpy, on views of the parameters."""
        layers = [self.make_numpy_layer(layer) for layer in self.layers]
        activate = self.activate_numpy

        def forward(x: np.ndarray) -> np.ndarray:
            for layer in layers:
                x = activate(layer(x))
            return x

        return forward


def check_activation(name: str) -> str:
    """Return the name of an activation. Raises ValueError for an unknown one."""
    if name not in ACTIVATIONS:
        raise ValueError(f"activation {name!r} is unknown; there are {', '.join(ACTIVATIONS)}")
    return name


def check_layers(factory: str, units: tuple[int, ...], activation: str) -> None:
    """Check the arguments of the factory named `factory`. Raises ValueError if no layers can be made of them."""
    check_activation(activation)
    if not units:
        raise ValueError(f"{factory} needs the units of at least one layer, as in {factory}(64, 64)")
    check_sizes(factory, *units)


def check_sizes(factory: str, *sizes: object) -> None:
    """Check sizes of the factory named `factory`. Raises ValueError unless all are integers from 1 to 2**31 - 1."""
    for size in sizes:
        if not isinstance(size, int | np.integer) or isinstance(size, bool) or not 1 <= size <= MAX_SIZE:
            raise ValueError(
                f"{factory} has the size {size!r}; it must be an integer, at least 1 and at most {MAX_SIZE:,}"
            )


def make_orthogonal_linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
    """Return a linear layer with orthogonal weights times `gain`, and biases 0."""
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def make_numpy_linear(layer: nn.Linear, outputs: int | None = None) -> NumpyFunction:
    """Return a linear layer in numpy, on views of its parameters: later updates of the layer have effect.

    Args:
        layer: The layer, on the CPU.
        outputs: The number of outputs to compute, the first of the layer; None: all.
    """
    weight = layer.weight.detach().numpy()[:outputs].T
    bias = layer.bias.detach().numpy()[:outputs]
    return lambda x: x @ weight + bias
