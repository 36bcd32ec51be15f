"""A transformer over the last rows of an episode (Vaswani et al. 2017) whose memory is their keys and values."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn

from algorithm.networks.mlp import check_sizes, make_orthogonal_linear


@dataclass(frozen=True)
class Attention:
    """A factory of a transformer memory: causal attention to the last rows of the episode: `Attention(64)`.

    Transformer layers with normalization first (pre-norm; Vaswani et al. 2017, arXiv 1706.03762) and a learned bias for
    each distance instead of positions. The memory of a lane has (window - 1) * (2 * units * layers + 1) values.
    Features [..., F] -> [..., units].

    Args:
        units: Size of the features, a multiple of `heads`.
        heads: Attention heads, 4 by default.
        window: Number of rows that a row attends to, itself included; at least 2, 16 by default.
        layers: Transformer layers, 1 by default.

    Raises:
        ValueError: A size below 1, units that are not a multiple of heads, or a window of one row.
    """

    units: int
    _: KW_ONLY
    heads: int = 4
    window: int = 16
    layers: int = 1

    def __post_init__(self) -> None:
        check_sizes("Attention", self.units, self.heads, self.window, self.layers)
        if self.units % self.heads:
            raise ValueError(f"Attention has {self.units} units for {self.heads} heads; heads must divide them")
        if self.window < 2:
            raise ValueError(f"Attention has a window of {self.window}; it must be at least 2")

    def __call__(self, size: int) -> AttentionMemory:
        return AttentionMemory(size, self)


class AttentionMemory(nn.Module):
    """The memory of an Attention: pre-norm transformer layers over cached keys and values.

    The state of a lane is a queue of `window` - 1 entries, oldest first. An entry has the keys and values of one row in
    every layer, and a flag: 1 if it holds a row. Only distances between rows matter, so entries stay valid as they age.
    """

    def __init__(self, size: int, config: Attention):
        super().__init__()
        self.size, self.past_rows = config.units, config.window - 1
        self.inputs = make_orthogonal_linear(size, config.units, gain=1.0)
        self.layers: Any = nn.ModuleList(AttentionLayer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.units)
        self.entry_size = 2 * config.units * config.layers + 1
        self.state_size = self.past_rows * self.entry_size

    def step(self, features: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Map one row: features [B, F], memory [B, state_size] -> features [B, size], next memory."""
        first = torch.zeros((1, len(features)), dtype=torch.bool, device=features.device)
        outputs, memory = self.unroll(features.unsqueeze(0), first, memory)
        return outputs[0], memory

    def unroll(self, features: Tensor, first: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Map T rows: [T, B, F], first [T, B], memory before row 0 -> [T, B, size], memory after the last row."""
        rows = len(features)
        entries = memory.unflatten(-1, (self.past_rows, self.entry_size))
        cached, is_present = entries[..., :-1].tensor_split(2 * len(self.layers), -1), entries[..., -1] > 0
        episode = torch.cat((torch.zeros_like(is_present, dtype=torch.int64), first.T.long().cumsum(-1)), -1)
        is_present = torch.cat((is_present, torch.ones_like(first.T)), -1)  # [B, past + T]
        distance = torch.arange(rows, device=first.device).unsqueeze(-1) + self.past_rows
        distance = distance - torch.arange(self.past_rows + rows, device=first.device)  # [T, past + T] rows back
        is_near = (distance >= 0) & (distance <= self.past_rows)
        is_visible = (
            is_near & is_present.unsqueeze(1) & (episode[:, self.past_rows :, None] == episode[:, None])
        )  # [B, T, past + T]

        x, columns = self.inputs(features).transpose(0, 1), []
        for index, layer in enumerate(self.layers):
            x, keys, values = layer(x, cached[2 * index], cached[2 * index + 1], is_visible, distance)
            columns += [keys[:, rows:], values[:, rows:]]
        same_episode = (is_present & (episode == episode[:, -1:]))[:, rows:].unsqueeze(-1).to(x.dtype)
        memory = torch.cat((torch.cat(columns, -1) * same_episode, same_episode), -1).flatten(1)
        return self.norm(x).transpose(0, 1), memory


class AttentionLayer(nn.Module):
    """A transformer layer: attention, then a hidden layer twice as wide."""

    def __init__(self, config: Attention):
        super().__init__()
        units = config.units
        self.heads = config.heads
        self.norms: Any = nn.ModuleList(nn.LayerNorm(units) for _ in range(2))
        self.project = make_orthogonal_linear(units, 3 * units, gain=1.0)
        self.output = make_orthogonal_linear(units, units, gain=1.0)
        self.hidden = nn.Sequential(
            make_orthogonal_linear(units, 2 * units, gain=sqrt(2)),
            nn.ReLU(),
            make_orthogonal_linear(2 * units, units, gain=1.0),
        )
        self.bias = nn.Parameter(torch.zeros(config.heads, config.window))  # by distance

    def forward(
        self, x: Tensor, keys: Tensor, values: Tensor, is_visible: Tensor, distance: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Attend to past and present rows, then apply the hidden layer.

        Args:
            x: Features [B, T, units].
            keys: Keys [B, past, units] of past rows.
            values: Values [B, past, units] of past rows.
            is_visible: Whether a row may attend to a past or present row [B, T, past + T].
            distance: Rows between them [T, past + T].

        Returns:
            Features [B, T, units], and keys and values [B, past + T, units] of past and present rows.
        """
        queries, new_keys, new_values = self.project(self.norms[0](x)).chunk(3, -1)
        keys, values = torch.cat((keys, new_keys), 1), torch.cat((values, new_values), 1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (queries, keys, values))
        scores = q @ k.transpose(-1, -2) / sqrt(q.shape[-1])
        scores = scores + self.bias[:, distance.clamp(0, self.bias.shape[1] - 1)]
        weights = scores.masked_fill(~is_visible.unsqueeze(1), -1e9).softmax(-1)
        x = x + self.output((weights @ v).transpose(1, 2).flatten(-2))
        return x + self.hidden(self.norms[1](x)), keys, values
