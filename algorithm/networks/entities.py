"""The encoder of a variable number of entities: attention among their rows, then pooling."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from math import prod, sqrt
from typing import Any

import torch
from torch import Tensor, nn

from algorithm.networks.layers import check_sizes, make_orthogonal_linear
from algorithm.specs import ObsSpec

HIDDEN_SCORE = -1e6  # of rows that no row attends to, as in ML-Agents


@dataclass(frozen=True)
class Entities:
    """A factory of an encoder of rows of features, of which some are absent: `Entities(64)`.

    Each row is embedded; rows attend to each other (pre-norm; Vaswani et al. 2017, arXiv 1706.03762); the features are
    mean and maximum over all rows that are present. A row of zeros is absent, as with ML-Agents' BufferSensor. The
    features do not depend on the order of the rows; without a row they are zeros.

    [batch, rows, features] or [batch, rows * features] -> [batch, 2 * units].

    Args:
        units: Size of an embedded row, a multiple of `heads`; 64 by default.
        heads: Attention heads, 4 by default.
        layers: Attention layers, 1 by default.

    Raises:
        ValueError: A size below 1, or units that are not a multiple of heads; when the encoder is made: an observation
            without rows.
    """

    units: int = 64
    _: KW_ONLY
    heads: int = 4
    layers: int = 1

    def __post_init__(self) -> None:
        check_sizes("Entities", self.units, self.heads, self.layers)
        if self.units % self.heads:
            raise ValueError(f"Entities has {self.units} units for {self.heads} heads; heads must divide them")

    def __call__(self, spec: ObsSpec) -> EntityEncoder:
        rows = spec.rows or (spec.shape[0] if len(spec.shape) == 2 else 0)
        if not rows:
            raise ValueError(f"an observation {list(spec.shape)} has no rows of entities; Vector() encodes any shape")
        return EntityEncoder(rows, prod(spec.shape) // rows, self)


class EntityEncoder(nn.Module):
    """The encoder of an Entities: [batch, rows, features] or flattened -> [batch, size] float32."""

    def __init__(self, rows: int, features: int, config: Entities):
        super().__init__()
        self.shape, self.size = (rows, features), 2 * config.units
        self.embed = make_orthogonal_linear(features, config.units, gain=sqrt(2))
        self.layers: Any = nn.ModuleList(EntityLayer(config.units, config.heads) for _ in range(config.layers))

    def forward(self, obs: Tensor) -> Tensor:
        # The operators are those that Unity's packages import.
        entities = obs.flatten(1).to(self.embed.weight.dtype).unflatten(1, self.shape)
        absent = (entities.abs().sum(-1, keepdim=True) <= 0).to(entities.dtype)  # [batch, rows, 1]
        x = self.embed(entities).relu()
        for layer in self.layers:
            x = layer(x, absent.transpose(1, 2).unsqueeze(1))
        present = 1 - absent
        # Rows are positive, so that those of absent entities, 0, are no maximum.
        x = x.relu() * present
        mean = x.sum(1) / present.sum(1).clamp(min=1)
        return torch.cat((mean, x.amax(1)), -1)


class EntityLayer(nn.Module):
    """A residual attention layer, then a residual hidden layer."""

    def __init__(self, units: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norms: Any = nn.ModuleList(nn.LayerNorm(units) for _ in range(2))
        self.project = make_orthogonal_linear(units, 3 * units, gain=1.0)
        self.output = make_orthogonal_linear(units, units, gain=1.0)
        self.hidden = make_orthogonal_linear(units, units, gain=sqrt(2))

    def forward(self, x: Tensor, absent: Tensor) -> Tensor:
        """Map rows [batch, rows, units]; `absent` [batch, 1, 1, rows] is 1 for rows that no row attends to."""
        parts = self.project(self.norms[0](x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        scores = q @ k.transpose(-1, -2) / sqrt(q.shape[-1])
        weights = (scores * (1 - absent) + HIDDEN_SCORE * absent).softmax(-1)
        x = x + self.output((weights @ v).transpose(1, 2).flatten(-2))
        return x + self.hidden(self.norms[1](x)).relu()
