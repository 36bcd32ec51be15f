"""Several critics of actions side by side, on a torso that learns with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from algorithm.networks.blueprint import Blueprint, build_module
from algorithm.networks.mlp import Mlp, make_orthogonal_linear
from algorithm.networks.precision import run_in_precision
from algorithm.networks.torso import Torso


class CriticEnsemble(nn.Module):
    """`count` critics that share nothing but the torso: Q of `values` actions at once, or of the actions they are told.

    `encoded` is how many numbers of an action they read beside the features (0: none, and there is a value of each
    action). The blueprint's layers of a critic stand in front of each output; without them critics that read actions
    have one hidden layer as wide as the features.
    """

    def __init__(self, blueprint: Blueprint, torso: Torso, encoded_size: int, n_values: int, count: int):
        super().__init__()
        layers = blueprint.critic or (Mlp(torso.size) if encoded_size else None)
        self.critics: Any = nn.ModuleList(_Critic(torso.size + encoded_size, n_values, layers) for _ in range(count))
        self.torso = torso  # last, so that it can stand beside a policy's own layers in one stretch of parameters
        self.n_values = n_values
        self.precision = torch.float32

    def forward(
        self, features: Tensor, actions: Tensor | None = None, critic_indices: Sequence[int] | None = None
    ) -> Tensor:
        """Features [..., F], actions [..., K, encoded] or none -> [M, ..., K], of some of the members or of all."""
        x, rows = features, (*features.shape[:-1], self.n_values)
        if actions is not None:
            rows = actions.shape[:-1]
            x = torch.cat((features.unsqueeze(-2).expand(*rows, -1), actions), -1)
        selected = self.critics if critic_indices is None else [self.critics[critic] for critic in critic_indices]
        # As plain rows: every layer would flatten them again.
        hidden = self._compute_hidden(x.flatten(0, -2), selected)
        values = torch.stack(
            [critic.head.forward(critic_hidden) for critic, critic_hidden in zip(selected, hidden, strict=True)]
        )
        return values.view(len(values), *rows)

    @run_in_precision
    def _compute_hidden(self, x: Tensor, critics: Iterable[_Critic]) -> list[Tensor]:
        return [critic.layers.forward(x) for critic in critics]


class _Critic(nn.Module):
    def __init__(self, inputs: int, n_values: int, layers: Any):
        super().__init__()
        self.layers: Any = build_module(layers, inputs, "forward") if layers else nn.Identity()
        self.head = make_orthogonal_linear(getattr(self.layers, "size", inputs), n_values, gain=1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.head.forward(self.layers.forward(x))
