"""Advantage actor-critic (Mnih et al. 2016, arXiv 1602.01783, Algorithm S3), for actions of every kind.

Under the local runtime it is A2C, the synchronous version: one update with the rollouts of all environments. Under
workers it is A3C. A network with a memory is trained by back-propagation through the whole rollout.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from algorithm.agents.agent import LossResult, select_statistics_rows, unroll
from algorithm.agents.metrics import make_stream_metrics, mean_weights, summarize_update, td_error_stats
from algorithm.agents.settings import A2CSettings
from algorithm.agents.state_value import StateValueAgent, normalize_advantages
from algorithm.losses import squared_error, surrogate_loss
from algorithm.networks import batch_statistics
from algorithm.rollout import Rollout


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
