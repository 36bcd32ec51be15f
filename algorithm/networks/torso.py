"""From observations to features: encoders, body and memory of a Blueprint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.networks.blueprint import Blueprint, EncoderFactory, build_module
from algorithm.networks.precision import run_in_precision
from algorithm.specs import ACTION_MASK, ObsSpec


class Torso(nn.Module):
    """All observations but the action mask -> `size` features; `state` numbers of memory per lane.

    `precision` is that of `unroll`. These numbers are first the `kept` ones of the memory behind the body, then those
    of encoders that remember observations themselves; `lead` rows in front of a window rebuild the latter, so that no
    replay keeps them.

    Raises ValueError where an observation has no encoder in the blueprint.
    """

    def __init__(self, blueprint: Blueprint, obs_specs: Mapping[str, ObsSpec]):
        super().__init__()
        self.precision = torch.float32
        specs = {name: spec for name, spec in obs_specs.items() if name != ACTION_MASK}
        self.names = list(specs)
        encoders = [build_module(_find_encoder(blueprint, name), spec, "forward") for name, spec in specs.items()]
        self.encoders: Any = nn.ModuleList(encoders)
        size = sum(encoder.size for encoder in encoders)
        self.body: Any = build_module(blueprint.body, size, "forward") if blueprint.body else None
        size = self.body.size if self.body else size
        self.memory: Any = build_module(blueprint.memory, size, "step", "unroll") if blueprint.memory else None
        self.size: int = self.memory.size if self.memory else size
        self.stored_state_size: int = self.memory.state_size if self.memory else 0
        self.warmup_rows: int = max(getattr(encoder, "past_frames", 0) for encoder in encoders)
        self._state_sizes = [self.stored_state_size, *(getattr(encoder, "state_size", 0) for encoder in encoders)]
        self.state_size: int = sum(self._state_sizes)

    def step(self, obs: Mapping[str, Tensor], memory: Tensor) -> tuple[Tensor, Tensor]:
        """One row: {name: [B, ...]}, memory [B, state] -> features [B, size], memory [B, state]."""
        recurrent_state, *frames = memory.split(self._state_sizes, -1)
        parts = []
        for index, (name, encoder) in enumerate(zip(self.names, self.encoders, strict=True)):
            if self._state_sizes[index + 1]:
                part, frames[index] = encoder.step(obs[name], frames[index])
            else:
                part = encoder(obs[name])
            parts.append(part)
        features = self._join_features(parts)
        if self.memory:
            features, recurrent_state = self.memory.step(features, recurrent_state)
        return features, torch.cat((recurrent_state, *frames), -1) if self.state_size else memory

    def encode(self, obs: Mapping[str, Tensor]) -> Tensor:
        """{name: [rows, ...]} -> [rows, F], in front of the memory; every row as if an episode began with it."""
        rows = {name: value.unsqueeze(0) for name, value in obs.items()}
        first = torch.ones((1, len(obs[self.names[0]])), dtype=torch.bool, device=obs[self.names[0]].device)
        return self._encode_rows(rows, first, None, 0, 1)[0]

    @run_in_precision
    def unroll(self, obs: Mapping[str, Tensor], first: Tensor, memory: Tensor, burn_in: int = 0) -> Tensor:
        """{name: [T+1, B, ...]}, first [T+1, B] -> features [T+1-burn_in, B, size].

        `memory` is either all of it [B, state] before row 0, or what a replay keeps of it [B, kept] before row `lead`.
        The rows of `burn_in` only bring the memory up to date, without gradient.
        """
        if not self.state_size:
            return self._encode_rows(obs, first, None, burn_in, len(first))
        recurrent_state, frames, begin = memory, None, self.warmup_rows
        if memory.shape[-1] == self.state_size:
            recurrent_state, *frames = memory.split(self._state_sizes, -1)
            begin = 0
        if self.memory and begin < burn_in:
            with torch.no_grad():
                features = self._encode_rows(obs, first, frames, begin, burn_in)
                recurrent_state = self.memory.unroll(features, first[begin:burn_in], recurrent_state)[1]
        features = self._encode_rows(obs, first, frames, burn_in, len(first))
        return self.memory.unroll(features, first[burn_in:], recurrent_state)[0] if self.memory else features

    def _encode_rows(
        self, obs: Mapping[str, Tensor], first: Tensor, memory: list[Tensor] | None, begin: int, end: int
    ) -> Tensor:
        """Rows `begin` to `end` of [T, B, ...] in one pass -> [end - begin, B, F], in front of the memory."""
        parts = []
        for index, (name, encoder) in enumerate(zip(self.names, self.encoders, strict=True)):
            if self._state_sizes[index + 1]:
                rows = encoder.stack(obs[name], first, memory and memory[index], begin, end)
            else:
                rows = obs[name][begin:end]
            parts.append(encoder(rows.flatten(0, 1)))
        return self._join_features(parts).unflatten(0, (end - begin, first.shape[1]))

    def _join_features(self, parts: list[Tensor]) -> Tensor:
        features = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        return self.body(features) if self.body else features

    def observe(self, obs: Mapping[str, np.ndarray], rows: np.ndarray) -> None:
        """Let the encoders that keep running statistics take in some rows [T, B] of {name: [T, B, ...]}."""
        for name, encoder in zip(self.names, self.encoders, strict=True):
            if hasattr(encoder, "observe"):
                encoder.observe(torch.from_numpy(obs[name][rows]))

    def numpy(self) -> Callable[[Mapping[str, np.ndarray]], np.ndarray] | None:
        """One row in numpy, on views of the parameters; None where a part has no such form."""
        parts = [*self.encoders, *([self.body] if self.body else [])]
        if self.state_size or not all(hasattr(part, "numpy") for part in parts):
            return None
        encoders = [(name, encoder.numpy()) for name, encoder in zip(self.names, self.encoders, strict=True)]
        body = self.body.numpy() if self.body else lambda x: x

        def step(obs: Mapping[str, np.ndarray]) -> np.ndarray:
            encoded = [encode(obs[name]) for name, encode in encoders]
            return body(encoded[0] if len(encoded) == 1 else np.concatenate(encoded, -1))

        return step


def _find_encoder(blueprint: Blueprint, name: str) -> EncoderFactory:
    for pattern, encoder in blueprint.encoders.items():
        if fnmatchcase(name, pattern):
            return encoder
    raise ValueError(f"the blueprint has no encoder for the observation {name!r}; it has {list(blueprint.encoders)}")
