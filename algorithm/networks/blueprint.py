"""What an nn.py fills in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from algorithm.networks.encoders.vector import Vector
from algorithm.specs import ObsSpec

# What they return is an nn.Module with a `size`, which nn.Module cannot say in types.
EncoderFactory = Callable[[ObsSpec], Any]  # the module maps [rows, *shape] to [rows, size]
LayersFactory = Callable[[int], Any]  # given the size of its input, the module maps it to `size`


@dataclass(frozen=True)
class Blueprint:
    """The factories of a network: agents build networks, targets, averages and worker copies from it.

    `encoders` maps patterns of observation names ("*" matches all) to encoders whose features are put side by side.
    `body`, and `memory` behind it, are shared by all heads; `policy` and `critic` add layers of their own. Without
    them all heads are slices of one linear layer.

    An encoder may keep RunningMoments: its `observe(obs [n, *shape])` gets every collected row once, and they are saved
    with the network and shared with its lagging copies.

    A memory's module has `size` (its output), `state` (its numbers per lane), `step(features [B, F], memory
    [B, state])` and `unroll(features [T, B, F], first [T, B], memory [B, state])`; both return features and memory.
    """

    encoders: Mapping[str, EncoderFactory] = field(default_factory=lambda: {"*": Vector()})
    body: LayersFactory | None = None
    memory: LayersFactory | None = None
    policy: LayersFactory | None = None
    critic: LayersFactory | None = None


def build_module(factory: Callable[[Any], Any], argument: Any, *methods: str) -> Any:
    """Return what a factory of a blueprint makes of `given`. Raises TypeError unless it is a module with `methods`."""
    module = factory(argument)
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"{_factory_name(factory)} made a value of type {type(module).__name__}; it must make a torch module"
        )
    for method in methods:
        if getattr(type(module), method, None) in (None, nn.Module.forward):
            raise TypeError(
                f"{_factory_name(factory)} made a {type(module).__name__}, which has no `{method}` and does not fit here"
            )
    return module


def _factory_name(factory: Any) -> str:
    return getattr(factory, "__name__", type(factory).__name__)
