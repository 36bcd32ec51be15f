"""Optimisers on one flat vector, in place: a handful of operations whatever the network."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from algorithm.agents.agent import ParameterGroup


class Optimizer(ABC):
    """Steps `vector` by `gradient`; `moments` is all it remembers, as one flat tensor."""

    moments: Tensor

    @abstractmethod
    def step(self, vector: Tensor, gradient: Tensor, rate: float) -> None:
        """One step of size `rate`."""


class Adam(Optimizer):
    """Kingma & Ba 2015, Algorithm 1, as the one operation that torch's own optimiser is when it is `fused`.

    `moments`: first, second, and the number of steps.
    """

    def __init__(self, size: int, device: torch.device, decay: float, epsilon: float, beta1: float = 0.9):
        self.moments = torch.zeros(2 * size + 1, device=device)
        self.first, self.second, self.steps = self.moments[:size], self.moments[size:-1], self.moments[-1]
        self.beta1, self.decay, self.epsilon = beta1, decay, epsilon

    def step(self, vector: Tensor, gradient: Tensor, rate: float) -> None:
        self.steps.add_(1)
        torch._fused_adam_(
            [vector],
            [gradient],
            [self.first],
            [self.second],
            [],
            [self.steps],
            lr=rate,
            beta1=self.beta1,
            beta2=self.decay,
            weight_decay=0.0,
            eps=self.epsilon,
            amsgrad=False,
            maximize=False,
        )


class RmsProp(Optimizer):
    """Tieleman & Hinton 2012: theta <- theta - rate g / (sqrt(s) + eps), or / sqrt(s + eps) where epsilon is inside.

    Inside is what Mnih et al. 2016 and Wang et al. 2017 use; behind the root is what torch has.
    """

    def __init__(self, size: int, device: torch.device, decay: float, epsilon: float, epsilon_inside: bool):
        self.moments = torch.zeros(size, device=device)
        self.decay, self.epsilon, self.epsilon_inside = decay, epsilon, epsilon_inside

    def step(self, vector: Tensor, gradient: Tensor, rate: float) -> None:
        self.moments.mul_(self.decay).addcmul_(gradient, gradient, value=1 - self.decay)
        if self.epsilon_inside:
            denominator = (self.moments + self.epsilon).sqrt_()
        else:
            denominator = self.moments.sqrt().add_(self.epsilon)
        vector.addcdiv_(gradient, denominator, value=-rate)


def make_optimizer(group: ParameterGroup, size: int, device: torch.device) -> Optimizer:
    """The optimiser that `group` asks for. Raises ValueError for an unknown name."""
    if group.optimizer == "adam":
        return Adam(size, device, group.optimizer_decay, group.optimizer_epsilon, group.optimizer_beta1)
    if group.optimizer == "rmsprop":
        return RmsProp(size, device, group.optimizer_decay, group.optimizer_epsilon, group.epsilon_inside)
    raise ValueError(f"optimizer {group.optimizer!r} is unknown; there are adam and rmsprop")
