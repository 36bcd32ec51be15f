"""The basis of agents that learn state values from their own rollouts, without a replay: settings, network, targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from algorithm.agents.agent import Agent, DataSchedule, ParameterGroup, RewardTransform
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
from algorithm.networks import ActorCritic, Blueprint, StdHead
from algorithm.returns import n_step_return
from algorithm.rollout import Array, Rollout
from algorithm.specs import Role


@dataclass(frozen=True, kw_only=True)
class StateValueSettings:
    """The settings that such agents share; default_config.yaml has the defaults, units and meanings.

    Raises:
        ValueError: Settings exclude one another.
    """

    learning_rate: Annotated[float, Range(above=0)]
    learning_rate_schedule: Literal["constant", "linear"]
    optimizer: Annotated[Literal["adam", "rmsprop"], FixedOnResume("the saved moments are those of this optimizer")]
    optimizer_beta1: Annotated[float, Range(at_least=0, below=1), OnlyIf(optimizer="adam")]
    optimizer_decay: Annotated[float, Range(at_least=0, below=1)]
    optimizer_epsilon: Annotated[float, Range(above=0)]
    epsilon_inside: Annotated[bool, OnlyIf(optimizer="rmsprop")]
    max_grad_norm: Annotated[float, Range(above=0)]
    value_coef: Annotated[float, Range(at_least=0)]
    entropy_coef: Annotated[float, Range(at_least=0)]
    gamma: Annotated[float, Range(at_least=0, at_most=1)]
    gae_lambda: Annotated[float, Range(at_least=0, at_most=1)]
    normalize_advantages: bool
    reward_scale: Annotated[float, Range(above=0)]
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
    rollout_length: Annotated[int, Range(at_least=1), FixedOnResume("the saved incomplete rollouts have this length")]

    def __post_init__(self) -> None:
        if self.std != "fixed" and self.std_init <= self.std_min:
            raise ValueError(f"std_init {self.std_init} must be above std_min {self.std_min}, unless std is fixed")


class StateValueAgent(Agent):
    """An agent with a policy and a critic of state values on a common torso, which learns from its own rollouts.

    A subclass defines the loss.

    Args:
        settings: The settings.
        blueprint: The network.
        role: The observations and actions.
        rng: The generator of sampled actions.
        epochs: Passes over each prepared rollout; None: one update with the rollout as it is.
        minibatches: Parts of a prepared rollout.
    """

    policy: ActorCritic
    family: DistributionFamily[ClosedFormDistribution]

    def __init__(
        self,
        settings: StateValueSettings,
        blueprint: Blueprint,
        role: Role,
        rng: np.random.Generator,
        *,
        epochs: int | None = None,
        minibatches: int = 1,
    ):
        self.rng = rng
        self.gamma, self.gae_lambda = settings.gamma, settings.gae_lambda
        spec = role.action_spec
        gaussian_family = TanhGaussianFamily if settings.tanh_squash else ClippedGaussianFamily
        gaussian = FixedStdGaussian if settings.std == "fixed" else Gaussian
        self.family = make_family(spec.continuous, spec.branches, gaussian_family, gaussian)
        std_head = None
        if spec.continuous:
            std_head = StdHead(spec.continuous, settings.std, settings.std_init, settings.std_min)
        self.policy = ActorCritic(blueprint, role.obs_specs, self.family.statistics_size, 1, std_head)
        self.groups = {
            "actor_critic": ParameterGroup(
                module=self.policy,
                learning_rate=settings.learning_rate,
                learning_rate_schedule=settings.learning_rate_schedule,
                optimizer=settings.optimizer,
                optimizer_beta1=settings.optimizer_beta1,
                optimizer_decay=settings.optimizer_decay,
                optimizer_epsilon=settings.optimizer_epsilon,
                epsilon_inside=settings.epsilon_inside,
                max_grad_norm=settings.max_grad_norm,
            )
        }
        self.schedule = DataSchedule(
            rollout_length=settings.rollout_length, uses_replay=False, epochs=epochs, minibatches=minibatches
        )
        self.reward_transform = RewardTransform(
            scale=settings.reward_scale,
            clip=settings.reward_clip,
            reward_normalization=settings.reward_normalization,
            gamma=settings.gamma,
        )

    def split_outputs(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the statistics [..., S] and the values [...] of the network's outputs, without gradient."""
        statistics, v = outputs.detach().split([self.family.statistics_size, 1], -1)
        return statistics, v.squeeze(-1)

    def estimate_values(self, rollout: Rollout, v: Tensor) -> Tensor:
        """Return the value targets [T, B], V_t + GAE(lambda) (Schulman et al. 2016, Eq. 16); lambda 1: n-step returns.

        Args:
            rollout: A rollout with T rows and the observation after them.
            v: V(x_t) [T+1, B].
        """
        return n_step_return(rollout.reward, self.gamma * rollout.alive, rollout.valid, v, self.gae_lambda)


def normalize_advantages(advantage: Tensor, valid: Array) -> Tensor:
    """Return advantages [T, B] with mean 0 and standard deviation 1 over valid rows, if there are at least two."""
    selected = advantage[valid]
    if len(selected) < 2:
        return advantage
    std, mean = torch.std_mean(selected)
    return (advantage - mean) / (std + 1e-8)
