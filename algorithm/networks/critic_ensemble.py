"""An ensemble of action-value critics on a common torso."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from algorithm.networks.layers import Mlp, make_orthogonal_linear
from algorithm.networks.modules import BranchFactory, build_module
from algorithm.networks.passes import AutogradPass, ManualPass, ManualStack, Pass, make_manual_stacks
from algorithm.networks.precision import run_in_precision
from algorithm.networks.torso import Blueprint, Torso


class CriticEnsemble(nn.Module):
    """An ensemble of critics that share only the torso. Each gives a value of every action, or of given actions.

    Args:
        blueprint: Its `critic` layers precede each output. Without them, critics of given actions have one hidden layer
            as wide as the features.
        torso: The torso, which is trained with the critics.
        encoded_size: Size of an encoded action that the critics read with the features; 0: no action.
        n_values: Number of values of a critic: the number of actions, or 1 for critics of given actions.
        count: Number of critics.
        value_shape: Shape of a value: () for scalars, (N,) for the logits of N atoms.
    """

    def __init__(
        self,
        blueprint: Blueprint,
        torso: Torso,
        encoded_size: int,
        n_values: int,
        count: int,
        value_shape: tuple[int, ...] = (),
    ):
        super().__init__()
        layers = blueprint.critic or (Mlp(torso.size) if encoded_size else None)
        inputs, outputs = torso.size + encoded_size, n_values * prod(value_shape)
        self.critics: Any = nn.ModuleList(_Critic(inputs, outputs, layers) for _ in range(count))
        self.torso = torso  # last: then a policy's own layers and the torso are contiguous in the flat parameters
        self.n_values, self.value_shape = n_values, value_shape
        self.precision = torch.float32
        self.manual_stacks: Sequence[ManualStack] = ()  # the critics, if gradients are computed by hand

    def use_manual_passes(self) -> None:
        """Compute gradients by hand in passes of given actions, if all layers support it."""
        if self.precision is torch.float32 and self.n_values == 1:
            self.manual_stacks = make_manual_stacks([(critic.layers, critic.head) for critic in self.critics])

    def run(self, inputs: Tensor, critic_indices: Sequence[int] | None = None, *, differentiates: bool = False) -> Pass:
        """Return the pass of M critics of given actions, with outputs [M, ..., *value_shape].

        Args:
            inputs: Features and encoded action of each row [..., F + encoded_size]; with gradient only if the loss of
                the pass trains the torso.
            critic_indices: The M critics; None: all.
            differentiates: Whether the gradient of the inputs is needed, which have none otherwise.
        """
        if self.manual_stacks and not inputs.requires_grad:
            stacks = _select(self.manual_stacks, critic_indices)
            return ManualPass(stacks, inputs, (len(stacks), *inputs.shape[:-1], *self.value_shape))
        inputs = inputs.requires_grad_() if differentiates else inputs
        return AutogradPass(self._evaluate(inputs, critic_indices, self.value_shape), inputs)

    def forward(
        self, features: Tensor, actions: Tensor | None = None, critic_indices: Sequence[int] | None = None
    ) -> Tensor:
        """Compute the values of M critics.

        Args:
            features: Features [..., F].
            actions: Encoded actions [..., K, encoded_size], K for each row of features; None: every action.
            critic_indices: The M critics to evaluate; None: all.

        Returns:
            Values [M, ..., K, *value_shape] of the given actions (`n_values` is then 1), or [M, ..., n_values,
            *value_shape] of every action.
        """
        if actions is None:
            return self._evaluate(features, critic_indices, (self.n_values, *self.value_shape))
        inputs = torch.cat((features.unsqueeze(-2).expand(*actions.shape[:-1], -1), actions), -1)
        return self._evaluate(inputs, critic_indices, self.value_shape)

    def _evaluate(self, inputs: Tensor, critic_indices: Sequence[int] | None, shape: tuple[int, ...]) -> Tensor:
        """Return the outputs [M, ..., *shape] of M critics at inputs [..., F]."""
        selected = _select(self.critics, critic_indices)
        # Flattened once here, otherwise every layer would flatten the rows.
        hidden = self._compute_hidden(inputs.flatten(0, -2), selected)
        values = torch.stack([critic.head.forward(x) for critic, x in zip(selected, hidden, strict=True)])
        return values.view(len(values), *inputs.shape[:-1], *shape)

    @run_in_precision
    def _compute_hidden(self, x: Tensor, critics: Iterable[_Critic]) -> list[Tensor]:
        return [critic.layers.forward(x) for critic in critics]


def _select(parts: Any, indices: Sequence[int] | None) -> Any:
    """Return the parts with some indices; None: all."""
    return parts if indices is None else [parts[index] for index in indices]


class _Critic(nn.Module):
    def __init__(self, inputs: int, outputs: int, layers: BranchFactory | None):
        super().__init__()
        self.layers: Any = build_module(layers, inputs, "forward") if layers else nn.Identity()
        self.head = make_orthogonal_linear(getattr(self.layers, "size", inputs), outputs, gain=1.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x))
