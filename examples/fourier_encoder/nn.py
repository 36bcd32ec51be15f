"""A new encoder: random Fourier features (Rahimi and Recht, 2007) of a vector.

A blueprint maps patterns of observation names to encoder factories. A factory is called with the ObsSpec of an
observation and returns a torch module with the attribute `size`, which maps [n, *shape] to [n, size].
"""

import math

import torch
from torch import Tensor, nn

from algorithm.networks import Blueprint, Mlp
from algorithm.specs import ObsSpec


class FourierFeatures(nn.Module):
    """An encoder that returns cosines of random projections, which are saved with the weights but not trained."""

    def __init__(self, inputs: int, size: int, scale: float):
        super().__init__()
        self.size = size
        self.projection = nn.Parameter(scale * torch.randn(inputs, size), requires_grad=False)
        self.phase = nn.Parameter(2 * math.pi * torch.rand(size), requires_grad=False)

    def forward(self, obs: Tensor) -> Tensor:
        return math.sqrt(2) * torch.cos(obs.flatten(1).float() @ self.projection + self.phase)


def make_encoder(spec: ObsSpec) -> nn.Module:
    """Return the encoder of an observation."""
    return FourierFeatures(math.prod(spec.shape), size=64, scale=0.5)


blueprint = Blueprint(encoders={"*": make_encoder}, body=Mlp(64))
