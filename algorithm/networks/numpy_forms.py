"""The numpy forms of modules, for acting: functions on views of parameters, so that later updates have effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import nn

NumpyFunction = Callable[[np.ndarray], np.ndarray]


def make_numpy_form(module: Any) -> NumpyFunction | None:
    """Return the numpy form of a module, which its method `numpy` makes; None if it has none."""
    return module.numpy() if hasattr(module, "numpy") else None


def make_numpy_chain(*modules: Any) -> NumpyFunction | None:
    """Return modules that follow each other in numpy; None if one has no numpy form. None and Identity are left out."""
    chained = [module for module in modules if module is not None and not isinstance(module, nn.Identity)]
    forms = [form for module in chained if (form := make_numpy_form(module))]
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
