"""Observations normalized by their running mean and standard deviation, and encoders of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.networks import Blueprint, FrameStack, Torso, Vector
from algorithm.networks.blueprint import EncoderFactory
from algorithm.networks.encoders.image import ConvEncoder, ResNetEncoder
from algorithm.networks.encoders.vector import Normalizer, VectorEncoder
from algorithm.networks.memory.frame_stack import FrameStackEncoder
from algorithm.specs import ObsSpec

CLIP = 5.0  # standard deviations
MAX_VALUES = 2**20  # values that are merged at once, so that float64 copies of images need little memory


class NormalizedObservations(nn.Module):
    """A module that maps observations to (x - mean) / std of all collected rows, each value clipped to [-5, 5].

    The statistics of an image are those of each pixel. Observations stay as they are if they are binary or one-hot, or
    if their encoder is neither Vector nor a convolutional network, such as OneHot, which reads codes.

    Args:
        torso: The agent's torso.
    """

    def __init__(self, torso: Torso):
        super().__init__()
        self._blueprint, self._obs_specs = torso.blueprint, torso.obs_specs
        specs, encoders = torso.obs_specs, zip(torso.names, torso.encoders, strict=True)
        self.names = [name for name, encoder in encoders if _can_normalize(encoder) and not _is_binary(specs[name])]
        self.normalizers: Any = nn.ModuleList(Normalizer(prod(specs[name].shape), CLIP) for name in self.names)

    def forward(self, obs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return {name: [n, *shape]}, of which the normalized ones are float32."""
        normalized = dict(obs)
        for name, normalizer in zip(self.names, self.normalizers, strict=True):
            normalized[name] = normalizer(obs[name].flatten(1).float()).view(obs[name].shape)
        return normalized

    def observe(self, obs: Mapping[str, np.ndarray]) -> None:
        """Update the statistics with the observations of a collected rollout {name: [T+1, B, *shape]}, but the last."""
        for name, normalizer in zip(self.names, self.normalizers, strict=True):
            rows = torch.from_numpy(obs[name][:-1]).flatten(0, 1).flatten(1)
            for part in rows.split(max(MAX_VALUES // rows.shape[1], 1)):
                normalizer.moments.merge(part)

    def make_encoder(self) -> Torso:
        """Return the agent's encoders with initial parameters, for normalized observations of one row each.

        A FrameStack becomes the encoder of the last frame alone (Burda et al. 2019, appendix A.3).
        """
        specs = {
            name: replace(spec, dtype="float32", high=1.0) if name in self.names else spec
            for name, spec in self._obs_specs.items()
        }
        encoders = {pattern: _simplify(factory) for pattern, factory in self._blueprint.encoders.items()}
        return Torso(Blueprint(encoders), specs)


def _can_normalize(encoder: nn.Module) -> bool:
    """Return whether an encoder of the agent supports normalized observations."""
    if isinstance(encoder, FrameStackEncoder):
        encoder = encoder.encoder
    return isinstance(encoder, VectorEncoder | ConvEncoder | ResNetEncoder)


def _is_binary(spec: ObsSpec) -> bool:
    """Return whether all values are 0 or 1."""
    return spec.dtype == "uint8" and spec.high <= 1


def _simplify(factory: EncoderFactory) -> EncoderFactory:
    """Return a factory of an encoder of one row of normalized observations."""
    if isinstance(factory, FrameStack):
        return _simplify(factory.encoder)
    return Vector() if isinstance(factory, Vector) else factory
