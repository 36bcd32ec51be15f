"""Learning in less precision than acting: what a torso computes, and nothing behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn


def in_precision(unroll: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A method `unroll(obs, ...)` that runs in the `precision` of its module, and returns float32 whatever that is."""

    @wraps(unroll)
    def unrolled(module: Any, obs: Any, *others: Any, **named: Any) -> Tensor:
        if module.precision is torch.float32:
            return unroll(module, obs, *others, **named)
        device = next(iter(obs.values())).device.type
        # Without the cache: in some versions of torch a weight first used without gradient (burn-in) gets none after.
        with torch.autocast(device, module.precision, cache_enabled=False):
            features = unroll(module, obs, *others, **named)
        return features.float()

    return unrolled


def learn_in(precision: torch.dtype, networks: Iterable[nn.Module]) -> None:
    """Let everything in `networks` that has a precision learn in this one; parameters and acting stay float32."""
    modules: Iterable[Any] = (module for network in networks for module in network.modules())
    for module in modules:
        if hasattr(module, "precision"):
            module.precision = precision
