"""Proximal policy optimization (Schulman et al. 2017, arXiv 1707.06347), for actions of every kind.

Equations are those of the paper: the clipped objective (Eq. 7), with the value loss and the entropy bonus (Eq. 9), and
advantages by GAE (Eq. 11-12), which are computed once for each rollout (Algorithm 1). Gradients with respect to the
outputs of the network are closed forms.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from algorithm.agents.a2c import StateValueAgent, normalize_advantages
from algorithm.agents.agent import LossResult, unroll
from algorithm.agents.metrics import make_stream_metrics, mean_weights, summarize_update, td_error_stats
from algorithm.agents.settings import PpoSettings
from algorithm.losses import clipped_error, clipped_importance, clipped_objective, squared_error, surrogate_loss
from algorithm.networks import batch_statistics
from algorithm.rollout import Rollout


@dataclass(frozen=True, kw_only=True)
class PolicyUpdate:
    """The update of the policy in a minibatch.

    Attributes:
        policy: The new policy at the T rows.
        old_policy: The policy that acted.
        rho: The ratios of the two [T, B].
        advantage: The advantages [T, B], normalized if the settings say so.
        clip_ratio: The clipping range, by its schedule.
        value_clip: The clipping range of values; None: none.
        direction: The ascent direction [T, B, S] of the statistics.
        weights: The weights of the rows in means [T, B].
        kl_excess: The mean KL divergence from the old policy, minus its limit; 0 without one.
    """

    policy: Any
    old_policy: Any
    rho: Tensor
    advantage: Tensor
    clip_ratio: float
    value_clip: float | None
    direction: Tensor
    weights: Tensor
    kl_excess: float

    def compute_metrics(self) -> dict[str, Tensor]:
        """Return the metrics of the policy, by name [T, B]."""
        return {
            "train/entropy": self.policy.entropy,
            "train/kl_to_old_policy": self.policy.kl(self.old_policy),
            "train/clip_fraction": ((self.rho - 1).abs() > self.clip_ratio).float(),
        }

    def compute_objectives(self) -> dict[str, Tensor]:
        """Return the clipped objective of each row, by name [T, B]."""
        return {"train/policy_objective": clipped_objective(self.rho, self.advantage, self.clip_ratio)}


class Ppo(StateValueAgent):
    """PPO: several epochs of minibatches of each rollout, with a clipped ratio of the new policy to the old one."""

    Settings: type[Any] = PpoSettings
    settings: PpoSettings

    def prepare(self, rollout: Rollout) -> Rollout:
        _, v, stream_values = self.split_outputs(self.policy.compute_outputs(unroll(self.policy.torso, rollout)))
        target, advantage, streams = self.estimate_returns(rollout, v, stream_values)
        return replace(
            rollout,
            targets={
                "value": target,
                "advantage": advantage,
                "old_value": v[:-1],
                **{f"value/{name}": stream.target for name, stream in streams.items()},
                **{f"old_value/{name}": stream.value for name, stream in streams.items()},
                **{f"valid/{name}": stream.valid for name, stream in streams.items()},
            },
        )

    def loss(self, rollout: Rollout) -> tuple[dict[str, Tensor], LossResult]:
        settings, valid, targets = self.settings, rollout.valid, rollout.targets
        rows = slice(len(rollout))
        obs = {name: value[rows] for name, value in rollout.obs.items()}  # for auxiliaries, there is one more row
        with batch_statistics(valid, commits=True):
            features = self.policy.torso.unroll(obs, rollout.first[rows], rollout.memory)
            outputs = self.policy.compute_outputs(features)
        with torch.inference_mode():
            statistics, v, stream_values = self.split_outputs(outputs)
            update = self.compute_policy_update(rollout, statistics)
            errors = [compute_error(targets["value"], v, targets["old_value"], update.value_clip)]
            stream_targets = {}
            for name, value in stream_values.items():
                stream_targets[name] = torch.where(targets[f"valid/{name}"], targets[f"value/{name}"], value)
                old_value = targets[f"old_value/{name}"]
                errors.append(compute_error(stream_targets[name], value, old_value, update.value_clip))
            value_directions = (settings.value_coef * error.unsqueeze(-1) for error in errors)
            ascent_direction = torch.cat((update.direction, *value_directions), -1)
            ascent_direction = update.weights.unsqueeze(-1) * ascent_direction

        def compute_metrics() -> dict[str, Tensor]:
            metric_values = {
                "train/critic_loss": squared_error(targets["value"], v),
                **update.compute_metrics(),
                "train/value": v,
            }
            for name, value in stream_values.items():
                metric_values |= make_stream_metrics(name, stream_targets[name], value)
            return summarize_update(update.weights, metric_values, targets["value"], v, update.compute_objectives())

        result = LossResult(
            compute_metrics, lambda: td_error_stats(valid, targets["value"] - v), features, kl_excess=update.kl_excess
        )
        return {"actor_critic": surrogate_loss(ascent_direction.clone(), outputs)}, result

    def compute_policy_update(self, rollout: Rollout, statistics: Tensor) -> PolicyUpdate:
        """Return the ascent direction of the clipped objective and the entropy bonus, and what it consists of.

        Args:
            rollout: A minibatch, with the advantages [T, B] among its targets.
            statistics: The statistics [T, B, S] of the new policy, without gradient and without the action mask.
        """
        settings, valid, advantage = self.settings, rollout.valid, rollout.targets["advantage"]
        policy = self.family(self.policy.mask_logits(statistics, rollout.obs))
        old_policy = self.family(rollout.behavior)
        rho = policy.log_ratio(old_policy, rollout.raw_action).clamp(max=20).exp()
        if settings.normalize_advantages:
            advantage = normalize_advantages(advantage, valid, self.merge_moments)
        clip_scale = self._compute_scale(settings.clip_ratio_schedule, settings.clip_ratio_final_fraction)
        clip_ratio = settings.clip_ratio * clip_scale
        entropy_scale = self._compute_scale(settings.entropy_coef_schedule, settings.entropy_coef_final_fraction)
        entropy_coef = settings.entropy_coef * entropy_scale
        direction = policy.score(rollout.raw_action, clipped_importance(rho, advantage, clip_ratio))
        if entropy_coef:
            direction = direction.add(policy.entropy_gradient(), alpha=entropy_coef)
        weights, kl_excess = mean_weights(valid, rollout.weight), 0.0
        if settings.target_kl is not None:
            kl_excess = ((weights * policy.kl(old_policy)).sum() - settings.target_kl).item()
        return PolicyUpdate(
            policy=policy,
            old_policy=old_policy,
            rho=rho,
            advantage=advantage,
            clip_ratio=clip_ratio,
            value_clip=None if settings.value_clip is None else settings.value_clip * clip_scale,
            direction=direction,
            weights=weights,
            kl_excess=kl_excess,
        )

    def _compute_scale(self, schedule: str, final_fraction: float) -> float:
        """Return a setting at the current progress of the run, as a fraction of its initial value."""
        return final_fraction + (1 - final_fraction) * (1 - self.progress) if schedule == "linear" else 1.0


def compute_error(target: Tensor, v: Tensor, old_value: Tensor, clip: float | None) -> Tensor:
    """Return the negative gradient of the squared error of values [T, B], clipped unless `clip` is None."""
    return target - v if clip is None else clipped_error(target, v, old_value, clip)
