"""The devices and the precision of networks.

With bfloat16 the layers before the outputs learn in it; outputs, parameters and acting stay float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

Tensors = TypeVar("Tensors", Tensor, list[Tensor], tuple[Tensor, Tensor])
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Placement:
    """The device of learning, the precision of its networks, and the device of acting, which is always in float32."""

    learning: torch.device = CPU
    precision: torch.dtype = torch.float32
    acting: torch.device = CPU


def upload(array: np.ndarray, device: torch.device) -> Tensor:
    """Return an array as a tensor on a device: on the CPU in the same memory, on CUDA without waiting for the copy."""
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    if device.type != "cuda" or not array.size:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)  # torch frees it after the copy


def run_in_precision(method: Callable[..., Tensors]) -> Callable[..., Tensors]:
    """Decorate a method of a module to compute in the module's `precision` and return float32.

    The first argument of the method is a tensor or a mapping of tensors, all on one device.
    """

    @wraps(method)
    def wrapper(module: Any, first: Any, *args: Any, **kwargs: Any) -> Any:
        if module.precision is torch.float32:
            return method(module, first, *args, **kwargs)
        tensor = first if isinstance(first, Tensor) else next(iter(first.values()))
        # No cache: in some versions of torch a weight first used without gradient (burn-in) gets no gradient later.
        with torch.autocast(tensor.device.type, module.precision, cache_enabled=False):
            result = method(module, first, *args, **kwargs)
        if isinstance(result, Tensor):
            return result.float()
        parts = [part.float() for part in result]
        return tuple(parts) if isinstance(result, tuple) else parts

    return wrapper


def set_precision(precision: torch.dtype, networks: Iterable[nn.Module]) -> None:
    """Set the precision in which all modules of some networks learn, where they have one.

    Args:
        precision: torch.float32 or torch.bfloat16.
        networks: The networks; their parameters stay float32.
    """
    modules: Iterable[Any] = (module for network in networks for module in network.modules())
    for module in modules:
        if hasattr(module, "precision"):
            module.precision = precision
