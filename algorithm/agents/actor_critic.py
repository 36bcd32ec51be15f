"""The parts of an agent that are built from the settings that algorithms share."""

from __future__ import annotations

from torch import nn

from algorithm.agents.agent import ParameterGroup
from algorithm.agents.settings import ActorCriticSettings, CategoricalSettings, OptimizerSettings
from algorithm.distributions import (
    ClippedGaussianFamily,
    ClosedFormDistribution,
    DistributionFamily,
    FixedStdGaussian,
    Gaussian,
    TanhGaussianFamily,
    make_family,
)
from algorithm.networks import StdHead
from algorithm.returns import Support
from algorithm.specs import ActionSpec


def make_policy_family(settings: ActorCriticSettings, spec: ActionSpec) -> DistributionFamily[ClosedFormDistribution]:
    """Return the distributions of the policy over actions of any kind."""
    gaussian_family = TanhGaussianFamily if settings.tanh_squash else ClippedGaussianFamily
    gaussian = FixedStdGaussian if settings.std == "fixed" else Gaussian
    return make_family(spec.continuous, spec.branches, gaussian_family, gaussian)


def make_std_head(settings: ActorCriticSettings, spec: ActionSpec) -> StdHead | None:
    """Return the standard deviations of the continuous actions; None without continuous actions."""
    if not spec.continuous:
        return None
    return StdHead(spec.continuous, settings.std, settings.std_init, settings.std_min)


def make_parameter_group(
    settings: OptimizerSettings, module: nn.Module, learning_rate: float, max_grad_norm: float
) -> ParameterGroup:
    """Return the parameter group of a module, with the optimizer of the settings."""
    return ParameterGroup(
        module=module,
        learning_rate=learning_rate,
        learning_rate_schedule=settings.learning_rate_schedule,
        learning_rate_final_fraction=settings.learning_rate_final_fraction,
        optimizer=settings.optimizer,
        weight_decay=settings.weight_decay,
        optimizer_beta1=settings.optimizer_beta1,
        optimizer_decay=settings.optimizer_decay,
        optimizer_epsilon=settings.optimizer_epsilon,
        epsilon_inside=settings.epsilon_inside,
        max_grad_norm=max_grad_norm,
    )


def make_support(settings: CategoricalSettings) -> Support:
    """Return the atoms of a categorical critic."""
    return Support(v_min=settings.v_min, v_max=settings.v_max, n_atoms=settings.n_atoms)
