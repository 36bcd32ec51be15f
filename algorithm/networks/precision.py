"""Learning in less precision than acting: what stands in front of the outputs, and not the outputs themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

Tensors = TypeVar("Tensors", Tensor, list[Tensor])


def run_in_precision(method: Callable[..., Tensors]) -> Callable[..., Tensors]:
    """A method of a module that runs in its `precision`, and returns float32 whatever that is."""

    @wraps(method)
    def wrapper(module: Any, first: Any, *args: Any, **kwargs: Any) -> Any:
        if module.precision is torch.float32:
            return method(module, first, *args, **kwargs)
        tensor = first if isinstance(first, Tensor) else next(iter(first.values()))
        # Without the cache: in some versions of torch a weight first used without gradient (burn-in) gets none after.
        with torch.autocast(tensor.device.type, module.precision, cache_enabled=False):
            result = method(module, first, *args, **kwargs)
        return result.float() if isinstance(result, Tensor) else [part.float() for part in result]

    return wrapper


def set_precision(precision: torch.dtype, networks: Iterable[nn.Module]) -> None:
    """Let everything in `networks` that has a precision learn in this one; parameters and acting stay float32."""
    modules: Iterable[Any] = (module for network in networks for module in network.modules())
    for module in modules:
        if hasattr(module, "precision"):
            module.precision = precision
