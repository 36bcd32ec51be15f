"""The parts of an agent that are built from the settings that algorithms share."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from torch import nn

from algorithm.agents.agent import DataSchedule, ParameterGroup
from algorithm.agents.settings import ActorCriticSettings, CategoricalSettings, OptimizerSettings, ReplaySettings
from algorithm.distributions import (
    ClippedGaussianFamily,
    ClosedFormDistribution,
    DistributionFamily,
    FixedStdGaussian,
    Gaussian,
    TanhGaussianFamily,
    make_family,
)
from algorithm.networks import Policy, StdHead
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


def select_settings(settings: Any, kind: type) -> dict[str, Any]:
    """Return the settings that have the names of fields of a dataclass."""
    return {each.name: getattr(settings, each.name) for each in fields(kind) if hasattr(settings, each.name)}


def make_parameter_group(
    settings: OptimizerSettings, module: nn.Module, learning_rate: float, max_grad_norm: float
) -> ParameterGroup:
    """Return the parameter group of a module, with the optimizer of the settings."""
    optimizer = select_settings(settings, OptimizerSettings)
    return ParameterGroup(module=module, learning_rate=learning_rate, max_grad_norm=max_grad_norm, **optimizer)


def make_replay_schedule(settings: ReplaySettings, policy: Policy, **others: Any) -> DataSchedule:
    """Return the schedule of an agent that learns from a replay, with its fields among the settings, and `others`.

    Raises:
        ValueError: `burn_in_step` is above 0, and the network has no memory that it would update.
    """
    if settings.burn_in_step and not policy.stored_state_size:
        raise ValueError(f"burn_in_step is {settings.burn_in_step}, but the network has no memory after its body")
    warmup_rows = policy.torso.warmup_rows
    others |= {"burn_in": warmup_rows + settings.burn_in_step, "warmup_rows": warmup_rows}
    return DataSchedule(**select_settings(settings, DataSchedule), **others)


def make_support(settings: CategoricalSettings) -> Support:
    """Return the atoms of a categorical critic."""
    return Support(v_min=settings.v_min, v_max=settings.v_max, n_atoms=settings.n_atoms)
