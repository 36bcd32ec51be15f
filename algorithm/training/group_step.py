"""The steps of the parameter groups of a learner: learning rates, the clipping of gradients, and optimizers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import cos, nan, pi

import torch
from torch import Tensor

from algorithm.agents.agent import Divergence, ParameterGroup
from algorithm.networks import FlatParameters
from algorithm.networks.flat_parameters import Place
from algorithm.training.natural_step import NaturalStep
from algorithm.training.optimizers import Optimizer, make_optimizer


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
        # Of the last gradient, before it was clipped; the same tensor in each update.
        self.gradient_norm = torch.full((), nan, device=self.gradient.device)

    def clip(self, checks_first: bool) -> Tensor | float:
        """Clip the gradient to the group's largest norm, and return the norm that it had.

        With `checks_first` the norm is read first, and a gradient that is short enough is not multiplied.
        """
        norm = torch.dot(self.gradient, self.gradient, out=self.gradient_norm)  # three times as fast as torch's norm
        norm.sqrt_()
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
        rate = torch.full((), self._compute_rate(progress), device=self.gradient.device)
        return {
            f"{prefix}_learning_rate": rate,
            f"{prefix}_gradient_norm": self.gradient_norm.clone(),
            **self.optimizer.metrics(),
        }

    def _compute_rate(self, progress: float) -> float:
        return self.group.learning_rate * compute_rate_scale(self.group, progress)


def make_group_steps(
    groups: Mapping[str, ParameterGroup],
    parameters: FlatParameters,
    compute_divergence: Callable[[], Divergence],
    device: torch.device,
    place: Place,
) -> list[GroupStep]:
    """Return the steps of all groups, those of natural groups last.

    Args:
        groups: The groups by name.
        parameters: Their flat parameters.
        compute_divergence: See NaturalStep.
        device: The device of the parameters.
        place: Returns the tensor that other processes share in place of the moments of an optimizer.
    """
    steps = []
    for name in sorted(groups, key=lambda name: groups[name].optimizer == "natural"):
        group, part = groups[name], parameters.group_slices[name]
        vector, gradient = parameters.vector[part], parameters.gradient[part]
        if group.optimizer == "natural":
            optimizer: Optimizer = NaturalStep(group, compute_divergence)
        else:
            optimizer = make_optimizer(group, len(vector), device)
        optimizer.use_moments(place(optimizer.moments))
        steps.append(GroupStep(name=name, group=group, vector=vector, gradient=gradient, optimizer=optimizer))
    return steps
