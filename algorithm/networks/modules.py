"""The modules that the factories of a blueprint make: their contracts, their construction, and their numpy forms.

A numpy form, the result of `numpy`, is `forward` as a function for acting, on views of parameters and running
statistics, so that later updates have effect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

from algorithm.specs import ObsSpec

NumpyFunction = Callable[[Any], np.ndarray]


class Encoder(Protocol):
    """A torch module that maps the observations of one name [rows, *shape] to features [rows, size]."""

    size: int

    def __call__(self, obs: Tensor, /) -> Tensor: ...


class Layers(Protocol):
    """A torch module that maps features [..., F] to features [..., size]."""

    size: int

    def __call__(self, features: Tensor, /) -> Tensor: ...


class Memory(Protocol):
    """A torch module that carries a float32 state [B, state_size] from row to row and puts out features of `size`."""

    size: int
    state_size: int

    def step(self, features: Tensor, memory: Tensor, /) -> tuple[Tensor, Tensor]:
        """Map one row: features [B, F], state [B, state_size] -> features [B, size], next state."""

    def unroll(self, features: Tensor, first: Tensor, memory: Tensor, /) -> tuple[Tensor, Tensor]:
        """Map T rows: features [T, B, F], first [T, B], state before row 0 -> features [T, B, size], last state.

        The state is zero at a row where `first` is True, the first row of an episode.
        """


EncoderFactory = Callable[[ObsSpec], Encoder]
Augmentation = Callable[[Tensor], Tensor]  # observations [rows, *shape] -> the same shape and dtype
AugmentationFactory = Callable[[ObsSpec], Augmentation]
LayersFactory = Callable[[int], Layers]  # the argument is the size of the input
MemoryFactory = Callable[[int], Memory]  # the argument is the size of the input
BranchFactory = LayersFactory | MemoryFactory  # a memory only where an agent supports it


def build_module(factory: Callable[[Any], object], argument: ObsSpec | int, *methods: str) -> Any:
    """Return the module that a factory of a blueprint makes.

    The type is Any, since nn.Module declares neither `size` nor the methods of a memory.

    Args:
        factory: The factory.
        argument: The argument of the factory: the spec of an observation, or the size of the input.
        methods: The methods that the module must have; without any, it must be layers or a memory.

    Raises:
        TypeError: The result is not a torch module, or lacks a method.
    """
    module = factory(argument)
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"{name_factory(factory)} made a value of type {type(module).__name__}; it must make a torch module"
        )
    for method in methods or ("forward",) * (not is_memory(module)):
        if not _has_method(module, method):
            hint = "; a memory goes into memory=, and only Reactor supports one in policy= and critic="
            raise TypeError(
                f"{name_factory(factory)} made a {type(module).__name__}, which has no `{method}` "
                f"and does not fit here{hint if is_memory(module) else ''}"
            )
    return module


def is_memory(module: nn.Module) -> bool:
    """Return whether a module has the methods of a memory."""
    return _has_method(module, "step") and _has_method(module, "unroll")


def _has_method(module: nn.Module, name: str) -> bool:
    return getattr(type(module), name, None) not in (None, nn.Module.forward)


def name_factory(factory: object) -> str:
    """Return the name of a factory for messages."""
    return getattr(factory, "__name__", type(factory).__name__)


def make_numpy_chain(*modules: Any) -> NumpyFunction | None:
    """Return modules that follow each other in numpy; None if one has no numpy form. None and Identity are left out."""
    chained = [module for module in modules if module is not None and not isinstance(module, nn.Identity)]
    forms = [form for module in chained if hasattr(module, "numpy") and (form := module.numpy())]
    if len(forms) < len(chained):
        return None

    def forward(x: np.ndarray) -> np.ndarray:
        for form in forms:
            x = form(x)
        return x

    return forms[0] if len(forms) == 1 else forward


def make_numpy_linear(layer: nn.Linear, outputs: int | None = None) -> NumpyFunction:
    """Return a linear layer in numpy.

    Args:
        layer: The layer, on the CPU.
        outputs: The number of outputs to compute, the first of the layer; None: all.
    """
    weight = layer.weight.detach().numpy()[:outputs].T
    if layer.bias is None:
        return lambda x: x @ weight
    bias = layer.bias.detach().numpy()[:outputs]
    return lambda x: x @ weight + bias
