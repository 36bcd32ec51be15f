"""A transformer over the last rows of an episode (Vaswani et al. 2017), with its keys and values as memory."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from algorithm.networks.mlp import check_sizes, orthogonal


@dataclass(frozen=True)
class Attention:
    """Factory of causal attention to this row and the `window` - 1 before it: `Attention(64, heads=4, window=16)`.

    Raises ValueError where heads do not divide the units, or the window holds no earlier row.
    """

    units: int
    heads: int = 4
    window: int = 16
    layers: int = 1

    def __post_init__(self) -> None:
        check_sizes("Attention", self.units, self.heads, self.window, self.layers)
        if self.units % self.heads:
            raise ValueError(f"Attention has {self.units} units for {self.heads} heads; heads must divide them")
        if self.window < 2:
            raise ValueError(f"Attention has a window of {self.window}; it must be at least 2")

    def __call__(self, size: int) -> nn.Module:
        return AttentionMemory(size, self)


class AttentionMemory(nn.Module):
    """Layers of attention and a hidden layer each, with normalisation in front and the sum behind (pre-norm).

    The memory is a line of `window` - 1 places, oldest first: keys and values of every layer, and 1 where there is a
    row. Positions are distances, so that what is kept never depends on when it was seen.
    """

    def __init__(self, size: int, shape: Attention):
        super().__init__()
        self.size, self.past = shape.units, shape.window - 1
        self.inputs = orthogonal(size, shape.units, gain=1.0)
        self.layers: Any = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.units)
        self.place = 2 * shape.units * shape.layers + 1
        self.state = self.past * self.place

    def step(self, features: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """One row: [B, F], [B, state] -> [B, size], [B, state]."""
        first = torch.zeros((1, len(features)), dtype=torch.bool, device=features.device)
        outputs, memory = self.unroll(features.unsqueeze(0), first, memory)
        return outputs[0], memory

    def unroll(self, features: Tensor, first: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """[T, B, F], first [T, B], memory [B, state] before row 0 -> [T, B, size], [B, state] behind the last row."""
        rows = len(features)
        places = memory.unflatten(-1, (self.past, self.place))
        kept, there = places[..., :-1].tensor_split(2 * len(self.layers), -1), places[..., -1] > 0
        episode = torch.cat((torch.zeros_like(there, dtype=torch.int64), first.T.long().cumsum(-1)), -1)
        there = torch.cat((there, torch.ones_like(first.T)), -1)  # [B, past + T]
        distance = torch.arange(rows, device=first.device).unsqueeze(-1) + self.past
        distance = distance - torch.arange(self.past + rows, device=first.device)  # [T, past + T] rows back
        near = (distance >= 0) & (distance <= self.past)
        seen = near & there.unsqueeze(1) & (episode[:, self.past :, None] == episode[:, None])  # [B, T, past + T]

        x, columns = self.inputs(features).transpose(0, 1), []
        for number, layer in enumerate(self.layers):
            x, keys, values = layer(x, kept[2 * number], kept[2 * number + 1], seen, distance)
            columns += [keys[:, rows:], values[:, rows:]]
        of_episode = (there & (episode == episode[:, -1:]))[:, rows:].unsqueeze(-1).to(x.dtype)
        memory = torch.cat((torch.cat(columns, -1) * of_episode, of_episode), -1).flatten(1)
        return self.norm(x).transpose(0, 1), memory


class Layer(nn.Module):
    """Attention, then a hidden layer twice as wide."""

    def __init__(self, shape: Attention):
        super().__init__()
        units = shape.units
        self.heads = shape.heads
        self.norms: Any = nn.ModuleList(nn.LayerNorm(units) for _ in range(2))
        self.project = orthogonal(units, 3 * units, gain=1.0)
        self.out = orthogonal(units, units, gain=1.0)
        self.hidden = nn.Sequential(
            orthogonal(units, 2 * units, gain=sqrt(2)), nn.ReLU(), orthogonal(2 * units, units, gain=1.0)
        )
        self.bias = nn.Parameter(torch.zeros(shape.heads, shape.window))  # of each distance

    def forward(
        self, x: Tensor, keys: Tensor, values: Tensor, seen: Tensor, distance: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """x [B, T, units], keys and values of the past -> x, and all keys and values [B, past + T, units]."""
        queries, own_keys, own_values = self.project(self.norms[0](x)).chunk(3, -1)
        keys, values = torch.cat((keys, own_keys), 1), torch.cat((values, own_values), 1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (queries, keys, values))
        scores = q @ k.transpose(-1, -2) / sqrt(q.shape[-1])
        scores = scores + self.bias[:, distance.clamp(0, self.bias.shape[1] - 1)]
        weights = scores.masked_fill(~seen.unsqueeze(1), -1e9).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).flatten(-2))
        return x + self.hidden(self.norms[1](x)), keys, values
