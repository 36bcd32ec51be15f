"""The outputs of a network: statistics of the policy first, values of the critic second."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.networks.blueprint import LayersFactory, build_module
from algorithm.networks.mlp import Mlp, make_numpy_linear


@dataclass(frozen=True)
class HeadSpec:
    """One output: how many numbers, and the gain of its first weights."""

    size: int
    gain: float


class SharedHeads(nn.Module):
    """Several outputs as slices of a single linear layer: one product instead of several.

    Outputs are laid out statistic by statistic in memory: [..., size] views whose last axis has the largest stride.
    Elementwise operations keep that layout, and sums over a few actions then run over whole rows at once.
    """

    def __init__(self, inputs: int, *heads: HeadSpec):
        super().__init__()
        self.sizes = [head.size for head in heads]
        self.linear = nn.Linear(inputs, sum(self.sizes))
        nn.init.zeros_(self.linear.bias)
        with torch.no_grad():
            for weight, head in zip(self.linear.weight.split(self.sizes), heads, strict=True):
                weight.copy_(nn.init.orthogonal_(torch.empty_like(weight), head.gain))

    def forward(self, features: Tensor) -> tuple[Tensor, ...]:
        return self.compute_concatenated(features).split(self.sizes, -1)

    def compute_hidden(self, features: Tensor) -> list[Tensor]:
        """What the outputs read: the features."""
        return [features]

    def compute_outputs(self, hidden: list[Tensor]) -> Tensor:
        """All outputs side by side, of what `hidden` gave."""
        return self.compute_concatenated(hidden[0])

    def compute_concatenated(self, features: Tensor) -> Tensor:
        """All outputs side by side: [..., F] -> [..., sum of sizes]."""
        rows = features.reshape(-1, features.shape[-1])
        outputs = torch.addmm(self.linear.bias.unsqueeze(1), self.linear.weight, rows.T)
        return outputs.T.view(*features.shape[:-1], -1)

    def numpy(self) -> Callable[[np.ndarray], np.ndarray]:
        """The first output alone in numpy, on views of the parameters."""
        return make_numpy_linear(self.linear, self.sizes[0])


class SeparateHeads(nn.Module):
    """Outputs with layers of their own in front (or none, where a blueprint gives none)."""

    def __init__(self, inputs: int, *branches: tuple[LayersFactory | None, HeadSpec]):
        super().__init__()
        self.layers: Any = nn.ModuleList(
            build_module(layers, inputs, "forward") if layers else nn.Identity() for layers, _ in branches
        )
        self.heads: Any = nn.ModuleList(
            SharedHeads(getattr(layers, "size", inputs), head)
            for layers, (_, head) in zip(self.layers, branches, strict=True)
        )

    def forward(self, features: Tensor) -> tuple[Tensor, ...]:
        return tuple(self._apply_heads(self.compute_hidden(features)))

    def compute_hidden(self, features: Tensor) -> list[Tensor]:
        """What each output reads: the features behind its layers."""
        return [layers(features) for layers in self.layers]

    def compute_outputs(self, hidden: list[Tensor]) -> Tensor:
        """All outputs side by side, of what `hidden` gave."""
        outputs = self._apply_heads(hidden)
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)

    def _apply_heads(self, hidden: list[Tensor]) -> list[Tensor]:
        return [head.compute_concatenated(head_input) for head, head_input in zip(self.heads, hidden, strict=True)]

    def numpy(self) -> Callable[[np.ndarray], np.ndarray] | None:
        """The first output alone in numpy, on views of the parameters; None where its layers have no such form."""
        layers, head = self.layers[0], self.heads[0].numpy()
        if isinstance(layers, nn.Identity):
            return head
        if not hasattr(layers, "numpy"):
            return None
        hidden = layers.numpy()
        return lambda x: head(hidden(x))


class AdvantageHead(nn.Module):
    """One value for each action: features [..., F] and actions [K, ..., E] -> [K, ...].

    `layers` stand in front of the output and read features and action side by side; without them it is one hidden
    layer as wide as the features.
    """

    def __init__(self, inputs: int, encoded_size: int, layers: LayersFactory | None):
        super().__init__()
        hidden: Any = build_module(layers or Mlp(inputs), inputs + encoded_size, "forward")
        self.layers, self.head = hidden, SharedHeads(hidden.size, HeadSpec(1, gain=1.0))

    def forward(self, features: Tensor, actions: Tensor) -> Tensor:
        inputs = torch.cat((features.expand(*actions.shape[:-1], -1), actions), -1)
        return self.head.compute_concatenated(self.layers(inputs)).squeeze(-1)
