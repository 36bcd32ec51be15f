"""The parameter groups of SAC."""

from __future__ import annotations

from torch import nn

from algorithm.agents.agent import ParameterGroup
from algorithm.agents.sac.settings import SacSettings


def make_adam_group(module: nn.Module, settings: SacSettings, rate: float, max_grad_norm: float) -> ParameterGroup:
    """Return the parameter group of a module of SAC, with its learning rate and its gradient norm."""
    return ParameterGroup(
        module=module,
        learning_rate=rate,
        learning_rate_schedule=settings.learning_rate_schedule,
        learning_rate_final_fraction=settings.learning_rate_final_fraction,
        optimizer=settings.optimizer,
        weight_decay=settings.weight_decay,
        optimizer_beta1=settings.optimizer_beta1,
        optimizer_decay=settings.optimizer_decay,
        optimizer_epsilon=settings.optimizer_epsilon,
        max_grad_norm=max_grad_norm,
    )
