"""The Blueprint that an nn.py fills in, and the torso that it describes: encoders, body and memory of a network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.networks.encoders import Vector
from algorithm.networks.modules import (
    Augmentation,
    AugmentationFactory,
    BranchFactory,
    EncoderFactory,
    LayersFactory,
    MemoryFactory,
    build_module,
    make_numpy_chain,
    name_factory,
)
from algorithm.networks.normalization import batch_statistics
from algorithm.networks.precision import run_in_precision
from algorithm.specs import ObsSpec, select_observed

Factory = TypeVar("Factory")


@dataclass(frozen=True)
class Blueprint:
    """A description of a network, from which an agent builds its policy, critics and target networks.

    Observations are encoded, concatenated, and passed through `body` and `memory`, which policy and critic share;
    `policy` and `critic` are separate layers before their outputs. Without body, policy and critic layers, the
    outputs are linear in the encoded observations.

    Example: `Blueprint({"image": NatureCnn(), "*": Vector()}, body=Mlp(128), memory=Gru(64))`.

    An encoder may keep running statistics (RunningMoments): its `observe(obs [n, *shape])` is called once with every
    collected row. The statistics are saved with the network and shared with its target networks.

    An augmentation changes the observations that a network learns from at random, before their encoder. Each forward
    pass over a batch, also of a target network, calls it with its rows. Acting, evaluation, export and the running
    statistics use the observations as they are.

    Args:
        encoders: Encoder factories by a pattern of observation names, as in a file name ("*" matches every name); an
            observation uses the first pattern that matches. Default: `Vector()` for every observation.
        augmentations: Augmentation factories by a pattern of observation names, such as `{"image": RandomShift(4)}`; an
            observation that no pattern matches is not augmented. Default: none.
        body: Factory of the layers after the encoders, such as `Mlp(64, 64)`; None: no layers.
        memory: Factory of the memory after the body, such as `Gru(64)`; None: no memory.
        policy: Factory of layers, or for Reactor of a memory, for the policy only; None: no layers.
        critic: Factory of layers, or for Reactor of a memory, for the critic only; None: no layers.
    """

    encoders: Mapping[str, EncoderFactory] = field(default_factory=lambda: {"*": Vector()})
    _: KW_ONLY
    augmentations: Mapping[str, AugmentationFactory] = field(default_factory=dict)
    body: LayersFactory | None = None
    memory: MemoryFactory | None = None
    policy: BranchFactory | None = None
    critic: BranchFactory | None = None


class Torso(nn.Module):
    """The encoders, body and memory of a blueprint: observations, without the action mask -> features of `size`.

    The memory of a lane has `state_size` values: first the `stored_state_size` values of the memory after the body,
    which a replay stores, then the values of encoders that have a memory (FrameStack). The latter are not stored:
    `warmup_rows` rows before a sequence rebuild them. `precision` is the precision of `unroll`, which only learning
    calls: it augments the observations, `step`, `encode` and `numpy` do not.

    Raises:
        ValueError: An observation has no encoder in the blueprint, or an augmentation has no observation.
        TypeError: A factory of the blueprint makes a value of the wrong type.
    """

    def __init__(self, blueprint: Blueprint, obs_specs: Mapping[str, ObsSpec]):
        super().__init__()
        self.precision = torch.float32
        self.blueprint, self.obs_specs = blueprint, obs_specs
        specs = select_observed(obs_specs)
        self.names = list(specs)
        encoders = [build_module(_find_encoder(blueprint, name), spec, "forward") for name, spec in specs.items()]
        self.encoders: Any = nn.ModuleList(encoders)
        self.augmentations = _make_augmentations(blueprint, specs)
        size = sum(encoder.size for encoder in encoders)
        self.body: Any = build_module(blueprint.body, size, "forward") if blueprint.body else None
        size = self.encoded_size = self.body.size if self.body else size  # of the features before the memory
        self.memory: Any = build_module(blueprint.memory, size, "step", "unroll") if blueprint.memory else None
        self.size: int = self.memory.size if self.memory else size
        self.stored_state_size: int = self.memory.state_size if self.memory else 0
        self.warmup_rows: int = max(getattr(encoder, "past_frames", 0) for encoder in encoders)
        self._state_sizes = [self.stored_state_size, *(getattr(encoder, "state_size", 0) for encoder in encoders)]
        self.state_size: int = sum(self._state_sizes)

    def make_encoder(self) -> Torso:
        """Return a torso with the same encoders and body, initial parameters of its own, no memory, no augmentation."""
        return Torso(replace(self.blueprint, memory=None, augmentations={}), self.obs_specs)

    def step(self, obs: Mapping[str, Tensor], memory: Tensor) -> tuple[Tensor, Tensor]:
        """Map one row: {name: [B, ...]}, memory [B, state_size] -> features [B, size], next memory."""
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

    def push_frames(self, obs: Mapping[str, np.ndarray], memory: np.ndarray) -> np.ndarray:
        """Return the next memory [n, state_size] of `step`, if there is no memory after the body."""
        if not self.state_size:
            return memory
        frames = np.split(memory, np.cumsum(self._state_sizes[1:-1]), -1)
        return np.concatenate(
            [
                encoder.push_frame(obs[name], past) if past.shape[1] else past
                for name, encoder, past in zip(self.names, self.encoders, frames, strict=True)
            ],
            -1,
        )

    def encode(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Encode rows as the first rows of episodes, without the memory: {name: [rows, ...]} -> [rows, F]."""
        rows = {name: value.unsqueeze(0) for name, value in obs.items()}
        n_rows = len(obs[self.names[0]])
        first = torch.ones((1, n_rows), dtype=torch.bool, device=obs[self.names[0]].device)
        return self._encode_rows(self.select_inputs(rows, first, torch.zeros(n_rows, 0, device=first.device), 0, 1))

    def select_inputs(
        self, obs: Mapping[str, Tensor], first: Tensor, frames: Tensor, begin: int, end: int
    ) -> dict[str, Tensor]:
        """Return the inputs of the encoders at rows `begin` to `end` of sequences, for `encode_inputs`.

        Args:
            obs: Observations {name: [T+1, B, ...]}.
            first: The first rows of episodes [T+1, B].
            frames: The past frames of all encoders before row 0 [B, ...]; [B, 0] if the rows before `begin` contain
                them.
            begin: The first row.
            end: The row after the last one.

        Returns:
            {name: [(end - begin) * B, ...]}, with the stacked frames of an encoder with a memory.
        """
        sizes = self._state_sizes[1:]
        past_frames = frames.split(sizes, -1) if frames.shape[-1] else [None] * len(sizes)
        inputs = {}
        for name, encoder, size, past in zip(self.names, self.encoders, sizes, past_frames, strict=True):
            rows = encoder.stack(obs[name], first, past, begin, end) if size else obs[name][begin:end]
            inputs[name] = rows.flatten(0, 1)
        return inputs

    @run_in_precision
    def encode_inputs(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return the features [rows, encoded_size] before the memory of inputs {name: [rows, ...]} of the encoders."""
        return self._encode_rows(inputs)

    def unroll(self, obs: Mapping[str, Tensor], first: Tensor, memory: Tensor, burn_in: int = 0) -> Tensor:
        """Compute the features of sequences.

        Args:
            obs: Observations {name: [T+1, B, ...]}.
            first: The first rows of episodes [T+1, B].
            memory: All of the memory [B, state_size] before row 0, or its stored part [B, stored_state_size] before row
                `warmup_rows`.
            burn_in: The first rows, which only update the memory, without gradient.

        Returns:
            Features [T+1-burn_in, B, size].
        """
        recurrent_state, frames, begin = self.split_memory(memory)
        if self.memory and begin < burn_in:
            with torch.no_grad(), batch_statistics(None):
                _, recurrent_state = self.unroll_rows(obs, first, recurrent_state, frames, begin, burn_in)
        return self.unroll_rows(obs, first, recurrent_state, frames, burn_in, len(first))[0]

    def split_memory(self, memory: Tensor) -> tuple[Tensor, Tensor, int]:
        """Return the parts of the memory of sequences [B, ...], and the row before which they are.

        Args:
            memory: All of the memory, or its stored part; see `unroll`.

        Returns:
            The state of the memory after the body, the past frames of all encoders ([B, 0] if they are not stored), and
            the row: 0, or `warmup_rows`.
        """
        recurrent_state, frames = memory.tensor_split([self.stored_state_size], -1)
        return recurrent_state, frames, 0 if memory.shape[-1] == self.state_size else self.warmup_rows

    @run_in_precision
    def unroll_rows(
        self,
        obs: Mapping[str, Tensor],
        first: Tensor,
        recurrent_state: Tensor,
        frames: Tensor,
        begin: int,
        end: int,
    ) -> tuple[Tensor, Tensor]:
        """Compute the features of rows `begin` to `end` of sequences; see `select_inputs`.

        Args:
            obs: Observations {name: [T+1, B, ...]}.
            first: The first rows of episodes [T+1, B].
            recurrent_state: The state [B, stored_state_size] of the memory after the body, before row `begin`.
            frames: The past frames of all encoders.
            begin: The first row.
            end: The row after the last one.

        Returns:
            Features [end - begin, B, size], and the state after the last row.
        """
        rows = self.select_inputs(obs, first, frames, begin, end)
        rows |= {name: augment(rows[name]) for name, augment in self.augmentations.items()}
        features = self._encode_rows(rows).unflatten(0, (end - begin, first.shape[1]))
        if not self.memory:
            return features, recurrent_state
        result: tuple[Tensor, Tensor] = self.memory.unroll(features, first[begin:end], recurrent_state)
        return result

    def _encode_rows(self, rows: Mapping[str, Tensor]) -> Tensor:
        """Encode the inputs {name: [rows, ...]} of all encoders, without the memory after the body -> [rows, F]."""
        return self._join_features(
            [encoder(rows[name]) for name, encoder in zip(self.names, self.encoders, strict=True)]
        )

    def _join_features(self, parts: list[Tensor]) -> Tensor:
        features = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        return self.body(features) if self.body else features

    def observe(self, obs: Mapping[str, np.ndarray], rows: np.ndarray) -> None:
        """Update the running statistics of the encoders with the selected rows [T, B] of {name: [T, B, ...]}."""
        for name, encoder in zip(self.names, self.encoders, strict=True):
            if hasattr(encoder, "observe"):
                encoder.observe(torch.from_numpy(obs[name][rows]))

    def numpy(self) -> Callable[[Mapping[str, np.ndarray]], np.ndarray] | None:
        """Return `step` without memory in numpy, on views of the parameters; None if a part has no numpy form."""
        encoders = [make_numpy_chain(encoder) for encoder in self.encoders]
        body = make_numpy_chain(self.body)
        if self.state_size or body is None or None in encoders:
            return None
        encode_by_name: Any = dict(zip(self.names, encoders, strict=True))

        def step(obs: Mapping[str, np.ndarray]) -> np.ndarray:
            encoded = [encode(obs[name]) for name, encode in encode_by_name.items()]
            return body(encoded[0] if len(encoded) == 1 else np.concatenate(encoded, -1))

        return step


def _find_encoder(blueprint: Blueprint, name: str) -> EncoderFactory:
    encoder = _find_factory(blueprint.encoders, name)
    if encoder is None:
        raise ValueError(
            f"the blueprint has no encoder for the observation {name!r}; it has {list(blueprint.encoders)}"
        )
    return encoder


def _make_augmentations(blueprint: Blueprint, specs: Mapping[str, ObsSpec]) -> dict[str, Augmentation]:
    """Return the augmentations of a blueprint by the name of their observation."""
    for pattern in blueprint.augmentations:
        if not any(fnmatchcase(name, pattern) for name in specs):
            raise ValueError(
                f"the blueprint has an augmentation of {pattern!r}, but the observations are {list(specs)}"
            )
    augmentations = {}
    for name, spec in specs.items():
        factory = _find_factory(blueprint.augmentations, name)
        if factory:
            augmentations[name] = augment = factory(spec)
            if not callable(augment):
                raise TypeError(
                    f"{name_factory(factory)} made a value of type {type(augment).__name__}; "
                    "it must make a function of observations"
                )
    return augmentations


def _find_factory(factories: Mapping[str, Factory], name: str) -> Factory | None:
    """Return the factory of the first pattern that matches the name of an observation; None without a match."""
    return next((factory for pattern, factory in factories.items() if fnmatchcase(name, pattern)), None)
