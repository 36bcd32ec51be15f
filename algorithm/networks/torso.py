"""From observations to features: encoders, body and memory of a Blueprint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.networks.blueprint import Blueprint, Encoder
from algorithm.networks.precision import in_precision
from algorithm.specs import ObsSpec


class Torso(nn.Module):
    """All observations -> `size` features; `state` numbers of memory per lane. `precision` is that of `unroll`.

    Raises ValueError where an observation has no encoder in the blueprint.
    """

    def __init__(self, blueprint: Blueprint, obs_specs: Mapping[str, ObsSpec]):
        super().__init__()
        self.precision = torch.float32
        self.names = list(obs_specs)
        encoders = [_encoder(blueprint, name)(spec) for name, spec in obs_specs.items()]
        self.encoders: Any = nn.ModuleList(encoders)
        size = sum(encoder.size for encoder in encoders)
        self.body: Any = blueprint.body(size) if blueprint.body else None
        size = self.body.size if self.body else size
        self.memory: Any = blueprint.memory(size) if blueprint.memory else None
        self.size: int = self.memory.size if self.memory else size
        self.state: int = self.memory.state if self.memory else 0

    def encode(self, obs: Mapping[str, Tensor]) -> Tensor:
        """{name: [rows, ...]} -> [rows, F], in front of the memory."""
        parts = [encoder(obs[name]) for name, encoder in zip(self.names, self.encoders, strict=True)]
        features = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        return self.body(features) if self.body else features

    def step(self, obs: Mapping[str, Tensor], memory: Tensor) -> tuple[Tensor, Tensor]:
        """One row: {name: [B, ...]}, memory [B, state] -> features [B, size], memory [B, state]."""
        features = self.encode(obs)
        return self.memory.step(features, memory) if self.memory else (features, memory)

    @in_precision
    def unroll(self, obs: Mapping[str, Tensor], first: Tensor, memory: Tensor, burn_in: int = 0) -> Tensor:
        """{name: [T+1, B, ...]}, first [T+1, B], memory [B, state] before row 0 -> features [T+1-burn_in, B, size].

        The rows of `burn_in` only bring the memory up to date, without gradient.
        """
        if burn_in and self.memory:
            with torch.no_grad():
                rows = {name: value[:burn_in] for name, value in obs.items()}
                memory = self.memory.unroll(self._flat(rows), first[:burn_in], memory)[1]
        if burn_in:
            obs, first = {name: value[burn_in:] for name, value in obs.items()}, first[burn_in:]
        features = self._flat(obs)
        return self.memory.unroll(features, first, memory)[0] if self.memory else features

    def _flat(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Encode [T, B, ...] in one pass over T * B rows."""
        shape = obs[self.names[0]].shape[:2]
        return self.encode({name: value.flatten(0, 1) for name, value in obs.items()}).unflatten(0, shape)

    def observe(self, obs: Mapping[str, np.ndarray], rows: np.ndarray) -> None:
        """Let the encoders that keep running statistics take in some rows [T, B] of {name: [T, B, ...]}."""
        for name, encoder in zip(self.names, self.encoders, strict=True):
            if hasattr(encoder, "observe"):
                encoder.observe(torch.from_numpy(obs[name][rows]))

    def numpy(self) -> Callable[[Mapping[str, np.ndarray]], np.ndarray] | None:
        """One row in numpy, on views of the parameters; None where a part has no such form."""
        parts = [*self.encoders, *([self.body] if self.body else [])]
        if self.memory or not all(hasattr(part, "numpy") for part in parts):
            return None
        encoders = [(name, encoder.numpy()) for name, encoder in zip(self.names, self.encoders, strict=True)]
        body = self.body.numpy() if self.body else lambda x: x

        def step(obs: Mapping[str, np.ndarray]) -> np.ndarray:
            encoded = [encode(obs[name]) for name, encode in encoders]
            return body(encoded[0] if len(encoded) == 1 else np.concatenate(encoded, -1))

        return step


def _encoder(blueprint: Blueprint, name: str) -> Encoder:
    for pattern, encoder in blueprint.encoders.items():
        if fnmatchcase(name, pattern):
            return encoder
    raise ValueError(f"the blueprint has no encoder for the observation {name!r}; it has {list(blueprint.encoders)}")
