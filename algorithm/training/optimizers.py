"""Optimizers of one flat vector, in place (a few operations, independent of the number of layers), and their steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import cos, nan, pi

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

    Before each step of Adam, theta <- theta - rate weight_decay theta, for all parameters of the vector.
    """

    def __init__(
        self, size: int, device: torch.device, decay: float, epsilon: float, beta1: float, weight_decay: float
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
        return AdamW(*common, group.optimizer_beta1, group.weight_decay)
    if group.optimizer == "rmsprop":
        return RmsProp(*common, group.epsilon_inside)
    raise ValueError(f"optimizer {group.optimizer!r} is unknown; there are adam, adamw and rmsprop")


def compute_rate_scale(group: ParameterGroup, progress: float) -> float:
    """Return the learning rate of a group, as a fraction of its initial one.

    linear: 1 -> f, cosine: f + (1 - f) (1 + cos(pi progress)) / 2 (Loshchilov & Hutter 2017, arXiv 1608.03983, Eq. 5),
    with f = `learning_rate_final_fraction`.

    Args:
        group: The group.
        progress: The fraction of the run that is done.
    """
    final = group.learning_rate_final_fraction
    remaining = {"constant": 1.0, "linear": 1 - progress, "cosine": (1 + cos(pi * progress)) / 2}
    return final + (1 - final) * remaining[group.learning_rate_schedule]


@dataclass(kw_only=True)
class GroupStep:
    """The step of one group of the parameters: its slices of the flat vector and gradient, and its optimizer."""

    name: str
    group: ParameterGroup
    vector: Tensor
    gradient: Tensor
    optimizer: Optimizer

    def __post_init__(self) -> None:
        self.gradient_norm = torch.full((), nan, device=self.gradient.device)  # of the last one, before it was clipped

    def clip(self, checks_first: bool) -> Tensor | float:
        """Clip the gradient to the group's largest norm, and return the norm that it had.

        With `checks_first` the norm is read first, and a gradient that is short enough is not multiplied.
        """
        norm = self.gradient.dot(self.gradient).sqrt()  # three times as fast as torch's norm
        self.gradient_norm = norm
        if checks_first and (short_norm := norm.item()) <= self.group.max_grad_norm:
            return short_norm
        self.gradient.div_((norm / self.group.max_grad_norm).clamp(min=1))
        return norm

    def __call__(self, progress: float) -> bool:
        """Step the group, and return whether the step is finite.

        `progress` is the fraction of the run that is done.
        """
        return self.optimizer.step(self.vector, self.gradient, self._compute_rate(progress))

    def compute_metrics(self, progress: float) -> dict[str, Tensor]:
        """Return scalars about the step of the last gradient at `progress`, by the names of metrics."""
        prefix = f"train/{self.name.rpartition('/')[2]}"  # auxiliary/<name> -> <name>, as in its other metrics
        return {
            f"{prefix}_learning_rate": torch.full((), self._compute_rate(progress), device=self.gradient.device),
            f"{prefix}_gradient_norm": self.gradient_norm,
            **self.optimizer.metrics(),
        }

    def _compute_rate(self, progress: float) -> float:
        return self.group.learning_rate * compute_rate_scale(self.group, progress)
