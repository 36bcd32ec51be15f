"""Actor-critic with experience replay (Wang et al. 2017, arXiv 1611.01224), for actions of every kind.

The code follows the order of the paper's equations: the targets (Eq. 5), the critic (Eq. 6), the policy gradient with
truncation and bias correction (Eq. 8-9), the trust region (Eq. 10-12). With a stochastic dueling critic (section 5)
Eq. 13-16 replace their counterparts; see `critics`. Gradients with respect to the outputs of the network are closed
forms; one backward pass propagates them through the network.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import inf
from typing import Any

import numpy as np
import torch
from torch import Tensor

from algorithm.agents.acer.critics import (
    ActionAdvantages,
    ActionValues,
    CriticOutput,
    StochasticDueling,
    as_categorical,
    select_critic,
)
from algorithm.agents.actor_critic import (
    make_parameter_group,
    make_policy_family,
    make_replay_schedule,
    make_std_head,
)
from algorithm.agents.agent import (
    Agent,
    Divergence,
    LossResult,
    ParameterGroup,
    RewardTransform,
    select_statistics_rows,
    unroll,
)
from algorithm.agents.metrics import make_stream_metrics, mean_weights, summarize_update, td_error_stats
from algorithm.agents.settings import AcerSettings
from algorithm.distributions import ClosedFormDistribution, DistributionFamily
from algorithm.losses import squared_error, surrogate_loss, truncated_importance, trust_region_multiplier
from algorithm.networks import ActorCritic, Blueprint, SeparateCritic, TargetNetwork, batch_statistics, collect_noise
from algorithm.networks.constraints import find_constraints
from algorithm.networks.default_network import has_images
from algorithm.networks.normalization import find_batch_norms
from algorithm.returns import (
    ESTIMATORS,
    EstimatorInputs,
    RewardStream,
    TraceClipping,
    add_advantages,
    estimate_streams,
    get_estimator,
)
from algorithm.rollout import Rollout
from algorithm.specs import Role

REPLAYS, IMAGE_REPLAYS = 32.0, 4.0  # mean number of times that each step is replayed if `replay_ratio` is null


class Acer(Agent):
    """ACER: an off-policy estimator, truncated importance sampling with bias correction, and a trust region.

    Raises:
        ValueError: The settings do not suit the kind of action, or the streams.
    """

    Settings = AcerSettings
    policy: ActorCritic
    family: DistributionFamily[ClosedFormDistribution]

    def __init__(
        self,
        settings: AcerSettings,
        blueprint: Blueprint,
        role: Role,
        rng: np.random.Generator,
        *,
        streams: Mapping[str, RewardStream] = {},
    ):
        self.settings, self.rng = settings, rng
        self.streams = dict(sorted(streams.items()))
        spec = role.action_spec
        uses_probs = settings.trust_region == "efficient" and settings.trust_region_space == "probs"
        if uses_probs and (spec.continuous or len(spec.branches) > 1):
            raise ValueError(f"trust_region_space probs needs a single discrete branch; for actions {spec} use logits")
        self.family = make_policy_family(settings, spec)
        self.critic = select_critic(settings, self.family, len(streams))
        self.n_values = self.family.statistics_size if self.critic is ActionValues else 1 + len(streams)
        # n of Eq. 13, and the size of an encoded action that the advantage head reads besides the features.
        is_dueling = self.critic is StochasticDueling
        self.n_samples, self.encoded_size = (settings.sdn_samples, self.family.encoded_size) if is_dueling else (0, 0)
        estimator = get_estimator(settings.estimator, has_probabilities=not spec.continuous)
        # Eq. 16: with sampled action values the policy learns from another estimator than the critic (Q^opc).
        name_for_policy = estimator.sampled_critic_estimator if self.n_samples else None
        self.estimator, self.policy_estimator = estimator, ESTIMATORS[name_for_policy or settings.estimator]
        self.trace_clipping = TraceClipping(
            trace_clip=settings.trace_clip, rho_clip=settings.rho_clip, trace_lambda=settings.trace_lambda
        )
        self.policy, average_policy = (self._make_policy(blueprint, role) for _ in range(2))
        self.average_policy = TargetNetwork(self.policy, average_policy)
        self.target_networks = {"average": self.average_policy}
        self.separate_critic: SeparateCritic | None = None
        if settings.trust_region == "full":
            _check_full_trust_region(blueprint, self.policy)
            # Its step would leave the trust region if it changed layers of the policy.
            self.separate_critic = SeparateCritic(blueprint, self.policy.torso.size, self.n_values, self.encoded_size)
        self.groups = _make_groups(settings, self.policy, self.separate_critic)
        self.schedule = make_replay_schedule(
            settings,
            self.policy,
            replays=IMAGE_REPLAYS if has_images(role) else REPLAYS,
            replay_count_distribution="poisson",
        )
        self.reward_transform = RewardTransform.from_settings(settings)

    def _make_policy(self, blueprint: Blueprint, role: Role) -> ActorCritic:
        """Return the network of the policy, which has the outputs of the critic unless the trust region is full."""
        std_head, statistics_size = make_std_head(self.settings, role.action_spec), self.family.statistics_size
        if self.settings.trust_region == "full":
            return ActorCritic(blueprint, role.obs_specs, statistics_size, 0, std_head)
        return ActorCritic(blueprint, role.obs_specs, statistics_size, self.n_values, std_head, self.encoded_size)

    @classmethod
    def supports_streams(cls, settings: Any) -> bool:
        return bool(settings.critic == "state_value")

    def loss(self, rollout: Rollout) -> tuple[dict[str, Tensor], LossResult]:
        rows = partial(select_statistics_rows, rollout)
        with batch_statistics(rows, commits=True):
            features = unroll(self.policy.torso, rollout)
            critic_network, critic_features = self.separate_critic or self.policy, features
            outputs = self.policy.compute_outputs(features)
            if self.separate_critic:
                critic_features = features.detach()
                outputs = torch.cat((outputs, self.separate_critic(critic_features)), -1)
        with_burn_in, rollout = rollout, rollout.drop_burn_in()
        statistics, values = outputs.detach().split([self.family.statistics_size, self.n_values], -1)
        policy = self.family(self.policy.mask_logits(statistics, rollout.obs))
        with batch_statistics(rows, commits=True):
            action_advantages = self.evaluate_advantages(critic_network, critic_features, policy, rollout.raw_action)
        with torch.inference_mode():
            output = self.critic(values, policy, rollout.raw_action, action_advantages)
            average = self._compute_policy(self.average_policy.network, with_burn_in)
            ascent_direction, advantage_direction, result = self._compute_ascent_direction(rollout, average, output)
        result.features = features
        losses = self._compute_losses(ascent_direction.clone(), outputs[:-1])
        if action_advantages is not None and advantage_direction is not None:
            critic_group = "critic" if self.separate_critic else "acer"
            advantage_loss = surrogate_loss(advantage_direction.clone(), action_advantages.advantages)
            losses[critic_group] = losses[critic_group] + advantage_loss
        return losses, result

    def evaluate_advantages(
        self,
        network: ActorCritic | SeparateCritic,
        features: Tensor,
        policy: ClosedFormDistribution,
        raw_action: Tensor,
    ) -> ActionAdvantages | None:
        """Return the network's advantages of single actions, with gradient; None if it has no advantage head.

        Args:
            network: The network of the critic.
            features: [T+1, B, F].
            policy: The policy at the T+1 rows.
            raw_action: The taken actions [T, B, size].
        """
        if not self.n_samples:
            return None
        policy_samples = policy.select_rows(slice(-1)).draw_samples(1 + self.n_samples)
        actions = self.family.encode(torch.cat((raw_action.unsqueeze(0), policy_samples)))
        return ActionAdvantages(network.advantage_head(features[:-1], actions), policy_samples[0])

    def _compute_losses(self, direction: Tensor, outputs: Tensor) -> dict[str, Tensor]:
        """Return the loss of each group; the gradient with respect to outputs [T, B, S + values] is -direction."""
        if not self.separate_critic:
            return {"acer": surrogate_loss(direction, outputs)}
        sizes = [self.family.statistics_size, self.n_values]
        pairs = zip(("policy", "critic"), direction.split(sizes, -1), outputs.split(sizes, -1), strict=True)
        return {group: surrogate_loss(*parts) for group, *parts in pairs}

    def divergence(self, rollout: Rollout) -> Divergence:
        with torch.no_grad():
            average = self._compute_policy(self.average_policy.network, rollout)
        return Divergence(
            compute_policy=partial(self._compute_policy, self.policy, rollout),
            average=average,
            weights=mean_weights(rollout.drop_burn_in().valid, torch.ones_like(rollout.weight)),
        )

    def _compute_ascent_direction(
        self, rollout: Rollout, average: ClosedFormDistribution, output: CriticOutput
    ) -> tuple[Tensor, Tensor | None, LossResult]:
        """Return ascent directions of outputs [T, B, S + values] and advantages, weighted for a sum over rows."""
        settings, valid, v = self.settings, rollout.valid, output.v[:-1]
        policy, behavior = output.policy, self.family(rollout.behavior)
        log_rho = policy.log_ratio(behavior, output.raw_action)
        rho = log_rho.clamp(-20, 20).exp()
        inputs = self._make_estimator_inputs(rollout, output, log_rho, rho)
        estimate = partial(self.estimator.estimate, clipping=self.trace_clipping)
        targets = policy_targets = estimate(inputs)  # Eq. 5, or another estimator
        if self.policy_estimator is not self.estimator:
            policy_targets = self.policy_estimator.estimate(inputs, self.trace_clipping)  # Eq. 16
        streams = estimate_streams(
            self.streams, rollout.bonuses, rollout.first, rollout.alive, output.stream_values, inputs, estimate
        )

        # Eq. 6, and with a stochastic dueling critic the error of V (Eq. 14): descent on 1/2 (target - value)^2.
        target = output.select_target(targets)
        error = target - output.q_taken
        value_gradient, advantage_direction = output.value_gradient(error, targets)

        # Eq. 8, first term; the bias correction follows from the critic.
        advantage = add_advantages(policy_targets.q_target - v, self.streams, streams)
        weight = truncated_importance(rho, advantage, settings.importance_clip)
        policy_direction, kl_multiplier = self._compute_policy_direction(output, weight, behavior, average)

        weights = mean_weights(valid, rollout.weight)
        stream_gradients = (stream.error.unsqueeze(-1) for stream in streams.values())
        value_directions = (settings.value_coef * each for each in (value_gradient, *stream_gradients))
        ascent_direction = weights.unsqueeze(-1) * torch.cat((policy_direction, *value_directions), -1)
        if advantage_direction is not None:
            advantage_direction = settings.value_coef * weights * advantage_direction

        def compute_metrics() -> dict[str, Tensor]:
            metric_values = {
                "train/critic_loss": squared_error(target, output.q_taken),
                "train/entropy": policy.entropy,
                "train/kl_to_average": policy.kl(average),
                "train/importance_ratio": rho,
                # Not if the policy equals the average policy, as with a single allowed action: the KL has no gradient.
                "train/trust_region_fraction": (kl_multiplier * policy.kl_gradient(average)).ne(0).any(-1).float(),
                "train/value": v,
            }
            for name, stream in streams.items():
                metric_values |= make_stream_metrics(name, stream.target, stream.value)
            plain_weights = mean_weights(valid, torch.ones_like(rollout.weight))
            policy_values = {
                "train/clip_fraction": (rho > settings.importance_clip).float(),
                "train/policy_objective": output.policy_objective(weight, behavior, settings.importance_clip),
            }
            return summarize_update(plain_weights, metric_values, target, output.q_taken, policy_values)

        return (
            ascent_direction,
            advantage_direction,
            LossResult(compute_metrics, lambda: td_error_stats(valid, error), compute_row_errors=lambda: error),
        )

    def _make_estimator_inputs(
        self, rollout: Rollout, output: CriticOutput, log_rho: Tensor, rho: Tensor
    ) -> EstimatorInputs:
        dimensions = self.family.dimensions
        return EstimatorInputs(
            reward=rollout.reward,
            discount=self.settings.gamma * rollout.alive,
            valid=rollout.valid,
            v=output.v,
            q_taken=output.q_taken,
            rho=rho,
            rho_per_dimension=rho if dimensions == 1 else (log_rho / dimensions).clamp(-20, 20).exp(),
            prob_taken=lambda: output.policy.log_prob(output.raw_action).exp(),
        )

    def _compute_policy_direction(
        self, output: CriticOutput, weight: Tensor, behavior: ClosedFormDistribution, average: ClosedFormDistribution
    ) -> tuple[Tensor, Tensor]:
        """Return the ascent direction of the policy's statistics, and the multiple of the KL gradient taken from it.

        The gradient of Eq. 9 is limited to the trust region (Eq. 10-12); the entropy bonus is added outside of it. The
        step in the statistics is always the gradient minus a multiple of the KL gradient; `trust_region_space` decides
        in which coordinates the multiple is computed.

        Returns:
            direction [T, B, S], multiplier [T, B, 1].
        """
        settings, policy = self.settings, output.policy
        gradient = output.policy_gradient(weight, behavior, settings.importance_clip)
        direction = torch.add(gradient, policy.entropy_gradient(), alpha=settings.entropy_coef)
        if settings.trust_region != "efficient":
            return direction, torch.zeros_like(gradient[..., :1])
        constrained = gradient, kl_gradient = gradient, policy.kl_gradient(average)
        if settings.trust_region_space == "probs":
            scores = output.weigh_all_scores(weight, behavior, settings.importance_clip)
            categorical = as_categorical(policy)
            kl_gradient_wrt_probs = categorical.kl_gradient_wrt_probs(as_categorical(average))
            constrained = categorical.score_wrt_probs(scores), kl_gradient_wrt_probs
        kl_multiplier = trust_region_multiplier(*constrained, settings.trust_region_delta)
        return torch.addcmul(direction, kl_multiplier, kl_gradient, value=-1), kl_multiplier

    def evaluate_actions(self, features: Tensor, raw_action: Tensor) -> Tensor:
        if self.critic is not ActionValues:
            raise ValueError("ACER has values of actions only for a single discrete branch, with critic action_value")
        outputs = (self.separate_critic or self.policy.compute_outputs)(features)
        return outputs[..., -self.n_values :].gather(-1, raw_action.long()).squeeze(-1).unsqueeze(0)

    def _compute_policy(self, network: ActorCritic, rollout: Rollout) -> ClosedFormDistribution:
        """Return the policy of a network, such as the average policy (section 3.3), at the T rows after the burn-in."""
        with batch_statistics(partial(select_statistics_rows, rollout)):
            outputs = network.compute_outputs(unroll(network.torso, rollout)[:-1])
        statistics = outputs[..., : self.family.statistics_size]
        return self.family(network.mask_logits(statistics, rollout.drop_burn_in().obs))

    def update_targets(self, update: int) -> None:
        """Update the average policy: theta_a <- alpha theta_a + (1 - alpha) theta (Algorithm 2)."""
        self.average_policy.polyak_update(1 - self.settings.average_policy_decay)


def _check_full_trust_region(blueprint: Blueprint, policy: ActorCritic) -> None:
    """Raise ValueError for a policy that changes outside of the steps, or between the evaluations of a line search."""
    refusals = {
        "augmentations, since each evaluation of its line search would draw others; "
        "remove `augmentations` from the blueprint": bool(blueprint.augmentations),
        "noisy layers, since their noise changes the policy after every step; use Mlp in place of NoisyMlp": bool(
            collect_noise([policy])
        ),
        "batch norms, unit weights or spectral norms in the policy, since they change it after the line search; "
        "use the norm layer or rms alone": bool(find_batch_norms([policy])) or any(find_constraints(policy)),
    }
    for refusal, is_refused in refusals.items():
        if is_refused:
            raise ValueError(f"trust_region full does not support {refusal}, or use trust_region efficient")


def _make_groups(
    settings: AcerSettings, policy: ActorCritic, separate_critic: SeparateCritic | None
) -> dict[str, ParameterGroup]:
    """Return the group of the network, or the groups of the policy and of its separate critic."""
    group = make_parameter_group(settings, separate_critic or policy, settings.learning_rate, settings.max_grad_norm)
    if not separate_critic:
        return {"acer": group}
    policy_group = ParameterGroup(
        module=policy,
        learning_rate=settings.trust_region_kl,
        learning_rate_schedule=settings.learning_rate_schedule,
        learning_rate_final_fraction=settings.learning_rate_final_fraction,
        optimizer="natural",
        max_grad_norm=inf,  # the length of the gradient has no effect on the step
        cg_iterations=settings.trust_region_iterations,
        damping=settings.trust_region_damping,
        max_halvings=settings.trust_region_halvings,
    )
    return {"policy": policy_group, "critic": group}
