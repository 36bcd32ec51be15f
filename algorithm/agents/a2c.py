"""Advantage actor-critic (Mnih et al. 2016, arXiv 1602.01783, Algorithm S3), for actions of every kind.

Under the local runtime it is A2C, the synchronous version: one update with the rollouts of all environments. Under
workers it is A3C. A network with a memory is trained by back-propagation through the whole rollout.

The network and the targets are those of all agents that learn state values from their own rollouts, as PPO does.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from algorithm.agents.actor_critic import make_parameter_group, make_policy_family, make_std_head, select_settings
from algorithm.agents.agent import (
    Agent,
    DataSchedule,
    LossResult,
    MergeMoments,
    RewardTransform,
    select_statistics_rows,
    unroll,
)
from algorithm.agents.metrics import make_stream_metrics, mean_weights, summarize_update, td_error_stats
from algorithm.agents.settings import A2CSettings, PpoSettings
from algorithm.distributions import ClosedFormDistribution, DistributionFamily
from algorithm.losses import squared_error, surrogate_loss
from algorithm.networks import ActorCritic, Blueprint, batch_statistics
from algorithm.returns import (
    EstimatorInputs,
    RewardStream,
    StreamEstimate,
    TraceClipping,
    add_advantages,
    estimate_streams,
)
from algorithm.returns.estimators import estimate_n_step
from algorithm.rollout import Array, Rollout
from algorithm.specs import Role


class StateValueAgent(Agent):
    """An agent with a policy and a critic of state values on a common torso, which learns from its own rollouts.

    A subclass defines the loss.
    """

    settings: A2CSettings | PpoSettings
    has_values: bool = True  # whether the network of the policy has the values; otherwise another one has them
    policy: ActorCritic
    family: DistributionFamily[ClosedFormDistribution]

    def __init__(
        self,
        settings: A2CSettings | PpoSettings,
        blueprint: Blueprint,
        role: Role,
        rng: np.random.Generator,
        *,
        streams: Mapping[str, RewardStream] = {},
    ):
        self.settings, self.rng = settings, rng
        self.streams = dict(sorted(streams.items()))
        self.family = make_policy_family(settings, role.action_spec)
        std_head = make_std_head(settings, role.action_spec)
        n_values = self.has_values + len(streams)
        self.policy = ActorCritic(blueprint, role.obs_specs, self.family.statistics_size, n_values, std_head)
        self.groups = {
            "actor_critic": make_parameter_group(settings, self.policy, settings.learning_rate, settings.max_grad_norm)
        }
        self.schedule = DataSchedule(**select_settings(settings, DataSchedule))
        self.reward_transform = RewardTransform.from_settings(settings)
        self.merges_moments = settings.normalize_advantages

    @classmethod
    def supports_streams(cls, settings: Any) -> bool:
        return True

    def split_outputs(self, outputs: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return the parts of the network's outputs, without gradient.

        Returns:
            The statistics [..., S], the values [...], and the values of each stream [...] by its name.
        """
        statistics, values = outputs.detach().split([self.family.statistics_size, 1 + len(self.streams)], -1)
        v, *stream_values = values.unbind(-1)
        return statistics, v, dict(zip(self.streams, stream_values, strict=True))

    def estimate_returns(
        self, rollout: Rollout, v: Tensor, stream_values: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor, dict[str, StreamEstimate]]:
        """Return the value targets, the advantages of the policy, and the estimates of each stream by its name.

        Targets are V_t + GAE(lambda) (Schulman et al. 2016, Eq. 16), n-step returns with lambda 1.

        Args:
            rollout: A rollout with T rows and the observation after them.
            v: V(x_t) [T+1, B].
            stream_values: V(x_t) [T+1, B] of each stream by its name.
        """
        ones = torch.ones_like(rollout.reward)  # the ratios of the actor's policy to itself
        inputs = EstimatorInputs(
            reward=rollout.reward,
            discount=self.settings.gamma * rollout.alive,
            valid=rollout.valid,
            v=v,
            q_taken=v[:-1],
            rho=ones,
            rho_per_dimension=ones,
            prob_taken=lambda: ones,
        )
        clipping = TraceClipping(trace_clip=1.0, rho_clip=1.0, trace_lambda=self.settings.gae_lambda)
        estimate = partial(estimate_n_step, clipping=clipping)
        target = estimate(inputs).q_target
        streams = estimate_streams(
            self.streams, rollout.bonuses, rollout.first, rollout.alive, stream_values.values(), inputs, estimate
        )
        return target, add_advantages(target - v[:-1], self.streams, streams), streams


def normalize_advantages(advantage: Tensor, valid: Array, merge_moments: MergeMoments | None = None) -> Tensor:
    """Return advantages [T, B] with mean 0 and standard deviation 1 over valid rows, if there are at least two.

    Args:
        advantage: The advantages [T, B].
        valid: The valid rows [T, B] bool.
        merge_moments: Merges the moments with those of the batches of other learners; None for a single learner.
    """
    selected = advantage[valid]
    count = len(selected)
    std, mean = torch.std_mean(selected) if count > 1 else (advantage.new_zeros(()), selected.sum())
    if merge_moments:
        count, *merged = merge_moments(count, mean.item(), std.item())
        mean, std = advantage.new_tensor(merged)
    return (advantage - mean) / (std + 1e-8) if count > 1 else advantage


class A2C(StateValueAgent):
    """A2C: the policy gradient with the advantage of n-step returns or GAE, state values, and an entropy bonus."""

    Settings = A2CSettings
    settings: A2CSettings

    def loss(self, rollout: Rollout) -> tuple[dict[str, Tensor], LossResult]:
        settings, valid = self.settings, rollout.valid
        with batch_statistics(partial(select_statistics_rows, rollout), commits=True):
            features = unroll(self.policy.torso, rollout)
            outputs = self.policy.compute_outputs(features)
        with torch.inference_mode():
            statistics, v, stream_values = self.split_outputs(outputs)
            policy = self.family(self.policy.mask_logits(statistics[:-1], rollout.obs))
            target, advantage, streams = self.estimate_returns(rollout, v, stream_values)
            error = target - v[:-1]
            if settings.normalize_advantages:
                advantage = normalize_advantages(advantage, valid, self.merge_moments)
            # d/d statistics of log pi(a_t | x_t) (R_t - V_t) + beta H, and descent on c_v / 2 (R_t - V_t)^2.
            policy_direction = policy.score(rollout.raw_action, advantage)
            if settings.entropy_coef:
                policy_direction = policy_direction.add(policy.entropy_gradient(), alpha=settings.entropy_coef)
            value_errors = error, *(stream.error for stream in streams.values())
            value_directions = (settings.value_coef * each.unsqueeze(-1) for each in value_errors)
            ascent_direction = torch.cat((policy_direction, *value_directions), -1)
            weights = mean_weights(valid, rollout.weight)
            ascent_direction = weights.unsqueeze(-1) * ascent_direction

        def compute_metrics() -> dict[str, Tensor]:
            metric_values = {
                "train/critic_loss": squared_error(target, v[:-1]),
                "train/entropy": policy.entropy,
                "train/value": v[:-1],
            }
            for name, stream in streams.items():
                metric_values |= make_stream_metrics(name, stream.target, stream.value)
            objective = policy.log_prob(rollout.raw_action) * advantage
            return summarize_update(weights, metric_values, target, v[:-1], {"train/policy_objective": objective})

        loss = surrogate_loss(ascent_direction.clone(), outputs[:-1])
        return {"actor_critic": loss}, LossResult(compute_metrics, lambda: td_error_stats(valid, error), features)
