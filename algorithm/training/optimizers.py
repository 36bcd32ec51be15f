"""Optimizers of one flat vector, in place: a few operations, independent of the number of layers."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from algorithm.agents.agent import ParameterGroup


class Optimizer(ABC):
    """An optimizer of a flat vector; `moments` is its whole state, as one flat tensor."""

    moments: Tensor

    def use_moments(self, moments: Tensor) -> None:
        """Use a tensor, perhaps one that other processes share, as `moments`."""
        self.moments = moments

    @abstractmethod
    def step(self, vector: Tensor, gradient: Tensor, rate: float) -> bool:
        """Change `vector` in place by one step with the learning rate `rate`.

        Returns:
            Whether the step is finite, given that the gradient is. If not, the whole update has to be undone.
        """

    def metrics(self) -> dict[str, Tensor]:
        """Return scalars about the last step, by the names of metrics. The default returns none."""
        return {}


class Adam(Optimizer):
    """Adam (Kingma & Ba 2015, Algorithm 1), by the operation of torch's fused optimizer.

    `moments` are the first moments, the second moments, and the number of steps.
    """

    def __init__(self, size: int, device: torch.device, decay: float, epsilon: float, beta1: float = 0.9):
        self.size, self.beta1, self.decay, self.epsilon = size, beta1, decay, epsilon
        self.use_moments(torch.zeros(2 * size + 1, device=device))

    def use_moments(self, moments: Tensor) -> None:
        self.moments = moments
        self.first, self.second, self.steps = moments[: self.size], moments[self.size : -1], moments[-1]

    def step(self, vector: Tensor, gradient: Tensor, rate: float) -> bool:
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
        return True


class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019, arXiv 1711.05101, Algorithm 2).

    Before each step of Adam, theta <- theta - rate weight_decay theta. `weight_decay` is one number for all parameters
    of the vector, or one for each.
    """

    def __init__(
        self, size: int, device: torch.device, decay: float, epsilon: float, beta1: float, weight_decay: float | Tensor
    ):
        super().__init__(size, device, decay, epsilon, beta1)
        self.weight_decay = weight_decay

    def step(self, vector: Tensor, gradient: Tensor, rate: float) -> bool:
        vector.mul_(1 - rate * self.weight_decay)
        return super().step(vector, gradient, rate)


class RmsProp(Optimizer):
    """RMSprop (Tieleman & Hinton 2012): theta <- theta - rate g / (sqrt(s) + eps).

    With `epsilon_inside` the divisor is sqrt(s + eps), as in Mnih et al. 2016 and Wang et al. 2017.
    """

    def __init__(self, size: int, device: torch.device, decay: float, epsilon: float, epsilon_inside: bool):
        self.moments = torch.zeros(size, device=device)
        self.decay, self.epsilon, self.epsilon_inside = decay, epsilon, epsilon_inside

    def step(self, vector: Tensor, gradient: Tensor, rate: float) -> bool:
        self.moments.mul_(self.decay).addcmul_(gradient, gradient, value=1 - self.decay)
        if self.epsilon_inside:
            denominator = (self.moments + self.epsilon).sqrt_()
        else:
            denominator = self.moments.sqrt().add_(self.epsilon)
        vector.addcdiv_(gradient, denominator, value=-rate)
        return True


def make_optimizer(group: ParameterGroup, size: int, device: torch.device) -> Optimizer:
    """Return the optimizer of a parameter group of `size` parameters. Raises ValueError for an unknown name."""
    common = size, device, group.optimizer_decay, group.optimizer_epsilon
    if group.optimizer == "adam":
        return Adam(*common, group.optimizer_beta1)
    if group.optimizer == "adamw":
        return AdamW(*common, group.optimizer_beta1, _make_weight_decay(group, device))
    if group.optimizer == "rmsprop":
        return RmsProp(*common, group.epsilon_inside)
    raise ValueError(f"optimizer {group.optimizer!r} is unknown; there are adam, adamw and rmsprop")


def _make_weight_decay(group: ParameterGroup, device: torch.device) -> float | Tensor:
    """Return the weight decay of a group, which is 0 for parameters that are not trained."""
    parameters = list(group.module.parameters())
    if all(parameter.requires_grad for parameter in parameters):
        return group.weight_decay
    trained = [torch.full((parameter.numel(),), float(parameter.requires_grad)) for parameter in parameters]
    return group.weight_decay * torch.cat(trained).to(device)
