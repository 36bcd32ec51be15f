"""Several critics of actions side by side, on a torso that learns with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from algorithm.networks.blueprint import Blueprint, build
from algorithm.networks.mlp import Mlp, orthogonal
from algorithm.networks.precision import in_precision
from algorithm.networks.torso import Torso


class Critics(nn.Module):
    """`count` critics that share nothing but the torso: Q of `values` actions at once, or of the actions they are told.

    `encoded` is how many numbers of an action they read beside the features (0: none, and there is a value of each
    action). The blueprint's layers of a critic stand in front of each output; without them critics that read actions
    have one hidden layer as wide as the features.
    """

    def __init__(self, blueprint: Blueprint, torso: Torso, encoded: int, values: int, count: int):
        super().__init__()
        layers = blueprint.critic or (Mlp(torso.size) if encoded else None)
        self.members: Any = nn.ModuleList(_Critic(torso.size + encoded, values, layers) for _ in range(count))
        self.torso = torso  # last, so that it can stand beside a policy's own layers in one stretch of parameters
        self.values = values
        self.precision = torch.float32

    def forward(self, features: Tensor, actions: Tensor | None = None, members: Sequence[int] | None = None) -> Tensor:
        """Features [..., F], actions [..., K, encoded] or none -> [M, ..., K], of some of the members or of all."""
        x, rows = features, (*features.shape[:-1], self.values)
        if actions is not None:
            rows = actions.shape[:-1]
            x = torch.cat((features.unsqueeze(-2).expand(*rows, -1), actions), -1)
        some = self.members if members is None else [self.members[member] for member in members]
        # As plain rows: every layer would flatten them again.
        hidden = self._hidden(x.flatten(0, -2), some)
        values = torch.stack([member.head.forward(own) for member, own in zip(some, hidden, strict=True)])
        return values.view(len(values), *rows)

    @in_precision
    def _hidden(self, x: Tensor, members: Iterable[_Critic]) -> list[Tensor]:
        return [member.layers.forward(x) for member in members]


class _Critic(nn.Module):
    def __init__(self, inputs: int, values: int, layers: Any):
        super().__init__()
        self.layers: Any = build(layers, inputs, "forward") if layers else nn.Identity()
        self.head = orthogonal(getattr(self.layers, "size", inputs), values, gain=1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.head.forward(self.layers.forward(x))
