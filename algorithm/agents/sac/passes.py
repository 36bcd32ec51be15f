"""Passes through the networks of SAC: by autograd, or by hand where the networks are plain layers on the CPU.

The losses of SAC are known by their gradients with respect to the outputs of networks, so that a pass needs no more
than these. In shapes, M critics, K combinations of discrete branches; `*v` is the shape of a value.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor, nn

from algorithm.agents.agent import ClosedFormLoss, Loss
from algorithm.losses import surrogate_loss
from algorithm.networks import ActorCritic, CriticEnsemble
from algorithm.networks.heads import SeparateHeads
from algorithm.networks.plain_layers import Buffers, PlainLayers, PlainPass, make_plain_layers


class Pass(ABC):
    """A pass through a network.

    Attributes:
        outputs: The outputs [..., S], without gradient.
    """

    outputs: Tensor

    @abstractmethod
    def make_loss(self, direction: Tensor) -> Loss:
        """Return a loss whose gradient with respect to the outputs is -`direction`; `surrogate_loss`."""


class AutogradPass(Pass):
    """A pass of which autograd has recorded the operations.

    Args:
        outputs: The outputs [..., S] with gradient.
    """

    def __init__(self, outputs: Tensor):
        self._with_gradient, self.outputs = outputs, outputs.detach()

    def make_loss(self, direction: Tensor) -> Tensor:
        return surrogate_loss(direction, self._with_gradient)


class PlainCritics:
    """Critics of given actions that are plain layers."""

    def __init__(self, networks: Sequence[PlainLayers], value_shape: tuple[int, ...]):
        self.networks, self.value_shape = networks, value_shape

    @classmethod
    def make(cls, critics: CriticEnsemble, buffers: Buffers) -> PlainCritics | None:
        """Return the critics of an ensemble as plain layers; None if they have other ones."""
        if critics.precision is not torch.float32:
            return None
        networks = [make_plain_layers(critic.layers, critic.head, buffers) for critic in critics.critics]
        found = [network for network in networks if network]
        return cls(found, critics.value_shape) if len(found) == len(networks) else None

    def run(self, inputs: Tensor, indices: Sequence[int] | None = None) -> PlainCriticPass:
        """Return the pass of M critics.

        Args:
            inputs: Features and encoded action of each row [..., F + E].
            indices: The M critics; None: all.
        """
        x = inputs.flatten(0, -2)
        networks = self.networks if indices is None else [self.networks[index] for index in indices]
        return PlainCriticPass([network.run(x) for network in networks], inputs.shape[:-1], self.value_shape)

    def compute(self, inputs: Tensor, indices: Sequence[int] | None = None) -> Tensor:
        """Return the outputs [M, ..., *v] of M critics, if no gradients are needed."""
        critic_pass = self.run(inputs, indices)
        critic_pass.release()
        return critic_pass.outputs


class PlainCriticPass(Pass):
    """A pass through plain critics, with outputs [M, ..., *v]."""

    def __init__(self, passes: list[PlainPass], rows: torch.Size, value_shape: tuple[int, ...]):
        self._passes, self._rows = passes, rows
        self.outputs = torch.stack([part.values for part in passes]).view(len(passes), *rows, *value_shape)

    def make_loss(self, direction: Tensor) -> ClosedFormLoss:
        return ClosedFormLoss(lambda: self._add_gradients(-direction))

    def differentiate(self, gradient: Tensor) -> Tensor:
        """Return the gradient of the inputs [..., F + E] for that of the outputs [M, ..., *v], and end the pass."""
        parts = [part.differentiate(rows) for part, rows in self._split(gradient)]
        return reduce(torch.add, parts).view(*self._rows, -1)

    def release(self) -> None:
        """End the pass, of which no gradient is needed."""
        for part in self._passes:
            part.release()

    def _add_gradients(self, gradient: Tensor) -> None:
        for part, rows in self._split(gradient):
            part.add_gradients(rows)

    def _split(self, gradient: Tensor) -> list[tuple[PlainPass, Tensor]]:
        """Return the pass of each critic, with the gradient of its outputs [n, outputs]."""
        rows = gradient.reshape(len(self._passes), self._rows.numel(), -1)
        return list(zip(self._passes, rows, strict=True))


class PlainPolicy:
    """A policy whose own layers are plain."""

    def __init__(self, network: ActorCritic, layers: PlainLayers):
        self.network, self.layers = network, layers

    @classmethod
    def make(cls, network: ActorCritic, buffers: Buffers) -> PlainPolicy | None:
        """Return the heads of a policy as plain layers; None if they have other ones."""
        if network.precision is not torch.float32:
            return None
        heads, body = network.heads, nn.Identity()
        if isinstance(heads, SeparateHeads):
            (body,), (heads,) = heads.layers, heads.heads
        layers = make_plain_layers(body, heads.linear, buffers, by_output=True)
        return cls(network, layers) if layers else None

    def run(self, features: Tensor) -> PlainPolicyPass:
        """Return the pass for features [T, B, F]."""
        return PlainPolicyPass(self.network, self.layers.run(features.flatten(0, -2)), features.shape[:-1])

    def compute(self, features: Tensor) -> Tensor:
        """Return the statistics [T, B, S] for features [T, B, F], if no gradients are needed."""
        policy_pass = self.run(features)
        policy_pass.release()
        return policy_pass.outputs


class PlainPolicyPass(Pass):
    """A pass through a plain policy; the outputs are its statistics [T, B, S]."""

    def __init__(self, network: ActorCritic, layer_pass: PlainPass, rows: torch.Size):
        self._pass, self._std_head = layer_pass, network.std_head
        values = self._std_head(layer_pass.values) if self._std_head else layer_pass.values
        self.outputs = values.view(*rows, -1)

    def make_loss(self, direction: Tensor) -> ClosedFormLoss:
        return ClosedFormLoss(lambda: self._add_gradients(-direction.flatten(0, -2)))

    def release(self) -> None:
        """End the pass, of which no gradient is needed."""
        self._pass.release()

    def _add_gradients(self, gradient: Tensor) -> None:
        if self._std_head:
            gradient = self._std_head.differentiate(self._pass.values, gradient)
        self._pass.add_gradients(gradient)
