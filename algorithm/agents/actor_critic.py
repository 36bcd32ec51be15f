"""The settings that actor-critic agents share, and the parts of an agent that are built from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from torch import nn

from algorithm.agents.agent import ParameterGroup
from algorithm.annotations import CONTINUOUS, FixedOnResume, OnlyIf, Range, Unless
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
from algorithm.specs import ActionSpec


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """The settings of an optimizer; default_config.yaml has their meanings."""

    learning_rate: Annotated[float, Range(above=0)]
    learning_rate_schedule: Literal["constant", "linear", "cosine"]
    learning_rate_final_fraction: Annotated[
        float, Range(at_least=0, at_most=1), OnlyIf(learning_rate_schedule=("linear", "cosine"))
    ]
    optimizer: Annotated[
        Literal["adam", "adamw", "rmsprop"],
        FixedOnResume("the saved moments belong to this optimizer", involving="rmsprop"),
    ]
    weight_decay: Annotated[float, Range(at_least=0), OnlyIf(optimizer="adamw")]
    optimizer_beta1: Annotated[float, Range(at_least=0, below=1), OnlyIf(optimizer=("adam", "adamw"))]
    optimizer_decay: Annotated[float, Range(at_least=0, below=1)]
    optimizer_epsilon: Annotated[float, Range(above=0)]
    epsilon_inside: Annotated[bool, OnlyIf(optimizer="rmsprop")]
    max_grad_norm: Annotated[float, Range(above=0)]


@dataclass(frozen=True, kw_only=True)
class ActorCriticSettings(OptimizerSettings):
    """The settings of the optimizer, the losses, the rewards and the policy; default_config.yaml has their meanings.

    Raises:
        ValueError: Settings exclude one another.
    """

    value_coef: Annotated[float, Range(at_least=0)]  # of the critic's error (Wang et al. 2017, Eq. 6)
    entropy_coef: Annotated[float, Range(at_least=0)]  # beta; in ACER outside of the projection
    gamma: Annotated[float, Range(at_least=0, at_most=1)]
    reward_scale: Annotated[float | None, Range(above=0)]
    reward_clip: Annotated[float | None, Range(above=0)]
    reward_normalization: Literal["return_std"] | None
    std: Annotated[
        Literal["fixed", "learned", "state_dependent"],
        CONTINUOUS,
        FixedOnResume("the saved network has this kind of standard deviation"),
    ]
    std_init: Annotated[float, Range(above=0), CONTINUOUS]
    std_min: Annotated[float, Range(at_least=0), CONTINUOUS, Unless(std="fixed")]
    tanh_squash: Annotated[bool, CONTINUOUS, FixedOnResume("the policy was trained with this bounding of its actions")]

    def __post_init__(self) -> None:
        if self.std != "fixed" and self.std_init <= self.std_min:
            raise ValueError(f"std_init {self.std_init} must be above std_min {self.std_min}, unless std is fixed")


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


def make_parameter_group(settings: OptimizerSettings, module: nn.Module) -> ParameterGroup:
    """Return the parameter group of a module, with the optimizer of the settings."""
    return ParameterGroup(
        module=module,
        learning_rate=settings.learning_rate,
        learning_rate_schedule=settings.learning_rate_schedule,
        learning_rate_final_fraction=settings.learning_rate_final_fraction,
        optimizer=settings.optimizer,
        weight_decay=settings.weight_decay,
        optimizer_beta1=settings.optimizer_beta1,
        optimizer_decay=settings.optimizer_decay,
        optimizer_epsilon=settings.optimizer_epsilon,
        epsilon_inside=settings.epsilon_inside,
        max_grad_norm=settings.max_grad_norm,
    )
