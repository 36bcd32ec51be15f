"""Soft actor-critic (Haarnoja et al. 2018, arXiv 1812.05905), for actions of every kind.

Equations without another source are from that paper, in its order: the critics (Eq. 5, with V of Eq. 3), then in
`actors` the policy (Eq. 7) and the temperatures (Eq. 17), then the target critics (Algorithm 1). Discrete branches are
summed over exactly (Christodoulou 2019, arXiv 1910.07207); for each of their K combinations the continuous dimensions
are sampled, with gradient.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from algorithm.agents.agent import (
    Agent,
    DataSchedule,
    LossReport,
    RewardTransform,
    check_burn_in,
    mean_weights,
    select_statistics_rows,
    td_error_stats,
    unroll,
    weighted_means,
)
from algorithm.agents.sac.actors import EpsilonGreedy, PolicyOutput, SacActor, SoftPolicy, make_adam_group
from algorithm.agents.sac.settings import SacSettings
from algorithm.distributions import HybridFamily
from algorithm.losses import clipped_error, soft_state_value, squared_error, surrogate_loss
from algorithm.networks import Blueprint, CriticEnsemble, TargetNetwork, Torso, batch_statistics
from algorithm.returns import EstimatorInputs, TraceClipping, get_estimator, rescale, unscale
from algorithm.rollout import Rollout
from algorithm.specs import Role


class Sac(Agent):
    """SAC with an ensemble of critics, multi-step targets, and a temperature for each kind of action dimension.

    Raises:
        ValueError: The settings do not suit the kind of action.
    """

    Settings = SacSettings
    family: HybridFamily

    def __init__(self, settings: SacSettings, blueprint: Blueprint, role: Role, rng: np.random.Generator):
        spec = role.action_spec
        self.settings, self.rng = settings, rng
        self.family = HybridFamily(spec.continuous, spec.branches)
        self.estimator = get_estimator(
            settings.estimator if settings.use_n_step_is else "n_step", has_probabilities=not spec.continuous
        )
        self.trace_clipping = TraceClipping(
            trace_clip=settings.v_c,
            rho_clip=settings.v_rho,
            trace_lambda=settings.v_lambda,
            horizon=settings.n_step,
        )
        self.takes_minimum = settings.ensemble_q_reduce == "min" or (
            settings.ensemble_q_reduce == "auto" and bool(spec.continuous)
        )
        torso, target_torso = (Torso(blueprint, role.obs_specs) for _ in range(2))
        # Without trainable parameters the target torso computes the same features, so that one pass is enough.
        self.torso_is_trainable = any(True for _ in torso.parameters())
        self.critics = self._make_critics(blueprint, torso)
        self.target = TargetNetwork(self.critics, self._make_critics(blueprint, target_torso))
        self.target_networks = {"target": self.target}
        self.actor: SacActor = (
            EpsilonGreedy(settings, self.family, self.critics, role)
            if settings.discrete_dqn_like
            else SoftPolicy(settings, self.family, blueprint, torso, role)
        )
        self.policy = self.actor.policy
        check_burn_in(settings.burn_in_step, torso)
        # The critics train the torso. In the flat parameters the policy's heads come after the torso, so that the
        # parameters of the policy are contiguous.
        critic_group = make_adam_group(
            self.critics, settings, settings.learning_rate_critic, settings.max_grad_norm_critic
        )
        self.groups = {"critic": critic_group, **self.actor.groups}
        self.schedule = DataSchedule(
            rollout_length=settings.rollout_length,
            sequence_length=settings.sequence_length,
            batch_size=settings.batch_size,
            replay_ratio=settings.replay_ratio,
            learning_starts=settings.learning_starts,
            on_policy_updates=False,
            burn_in=torso.warmup_rows + settings.burn_in_step,
            warmup_rows=torso.warmup_rows,
        )
        self.reward_transform = RewardTransform.from_settings(settings)
        self.needs_behavior = settings.use_n_step_is and settings.n_step > 1

    def _make_critics(self, blueprint: Blueprint, torso: Torso) -> CriticEnsemble:
        family = self.family
        encoded_size, n_values = (family.encoded_size, 1) if family.n_continuous else (0, family.n_combinations)
        return CriticEnsemble(blueprint, torso, encoded_size, n_values, self.settings.ensemble_q_num)

    def loss(self, rollout: Rollout) -> tuple[dict[str, Tensor], LossReport]:
        rows = select_statistics_rows(rollout)
        with batch_statistics(rows, commits=True):
            features = unroll(self.critics.torso, rollout)
        with torch.no_grad(), batch_statistics(rows):
            target_features = unroll(self.target.network.torso, rollout) if self.torso_is_trainable else features
        rollout = rollout.drop_burn_in()
        valid, critic_indices = rollout.valid, self._sample_critics()
        weights = mean_weights(valid, rollout.weight)

        # One sample of the policy's actions at every row: for the losses of the actor at the first T rows, for the
        # targets at the last T rows.
        detached_features = features.detach()
        all_steps, outputs = self.actor.evaluate(detached_features, rollout.obs, rows)
        policy_output = all_steps.select_rows(slice(-1))
        with torch.no_grad(), batch_statistics(rows[1:]):
            target = self._compute_target(
                rollout, target_features, policy_output, all_steps.select_rows(slice(1, None)), critic_indices
            )

        # Eq. 5: the critics descend 1/2 (target - Q)^2.
        with batch_statistics(valid, commits=True):
            q_all, q = self._evaluate_taken(self.critics, features[:-1], rollout.raw_action)
        with torch.no_grad():
            error = self._compute_error(target, q, target_features, rollout)
        losses = {"critic": surrogate_loss(weights * error, q)}
        evaluate_actions = partial(self._evaluate_policy_actions, detached_features[:-1], q_all, critic_indices)
        losses |= self.actor.compute_losses(policy_output, outputs, weights, evaluate_actions)

        q_detached = q.detach()

        def compute_metrics() -> dict[str, Tensor]:
            metric_values = {
                "train/critic_loss": squared_error(target.expand_as(q_detached), q_detached).mean(0),
                "train/value": q_detached.mean(0),
                **self.actor.compute_metrics(policy_output),
            }
            return {
                **weighted_means(mean_weights(valid, torch.ones_like(rollout.weight)), metric_values),
                **self.actor.get_temperatures(),
            }

        return losses, LossReport(compute_metrics, lambda: td_error_stats(valid, target - q_detached.mean(0)), features)

    def _compute_target(
        self,
        rollout: Rollout,
        target_features: Tensor,
        policy_output: PolicyOutput,
        next_steps: PolicyOutput,
        critic_indices: list[int],
    ) -> Tensor:
        """Return the target of Q(x_t, a_t) [T, B]: r + gamma V(x') (Eq. 5), or a multi-step target.

        Args:
            rollout: T rows.
            target_features: Features of the target critics [T+1, B, F].
            policy_output: The policy at the T rows.
            next_steps: The policy at the rows after them.
            critic_indices: The critics of this update.
        """
        settings, reward, discount = self.settings, rollout.reward, self.settings.gamma * rollout.alive
        q = self._evaluate_all_actions(
            self.target.network, target_features[1:], next_steps.reparameterized.actions, critic_indices
        )
        alpha_scale = settings.alpha_critic_scale
        entropy_cost = next_steps.entropy_cost if alpha_scale == 1 else alpha_scale * next_steps.entropy_cost
        v = soft_state_value(next_steps.policy.probs, q, entropy_cost)  # Eq. 3
        if settings.n_step == 1:
            target = torch.addcmul(reward, discount, v)
        else:
            target = self._compute_multi_step_target(
                rollout, target_features, policy_output, discount, v, critic_indices
            )
        return rescale(target) if settings.rescale_values else target

    def _compute_multi_step_target(
        self,
        rollout: Rollout,
        target_features: Tensor,
        policy_output: PolicyOutput,
        discount: Tensor,
        next_v: Tensor,
        critic_indices: list[int],
    ) -> Tensor:
        """Return targets [T, B] of up to `n_step` rewards, given V [T, B] of the next states.

        V-trace and n-step returns compare a reward with V, which includes the entropy of the action of the same row, so
        that the reward is r - alpha log pi(a); without that term E[r + gamma V' - V] would be -alpha H. Q(x, a) does
        not include it, so that neither the first reward of a target nor any reward of Retrace has the term.
        """
        raw_action, policy = rollout.raw_action, policy_output.policy
        rho = policy.log_ratio(self.family(rollout.behavior), raw_action).clamp(-20, 20).exp()
        # Neither V nor Q of the first row enters the target of an action value: they cancel.
        v = torch.cat((torch.zeros_like(next_v[:1]), next_v))
        entropy_cost, q_taken = torch.zeros_like(rho), v[:-1]
        if self.estimator.needs_action_values:
            q_taken = self._reduce_ensemble(
                self._evaluate_taken(self.target.network, target_features[:-1], raw_action, critic_indices)[1]
            )
        else:
            entropy_cost = self.settings.alpha_critic_scale * self.actor.compute_entropy_cost(policy, raw_action)
        inputs = EstimatorInputs(
            reward=rollout.reward - entropy_cost,
            discount=discount,
            valid=rollout.valid,
            v=v,
            q_taken=q_taken,
            rho=rho,
            rho_per_dimension=rho,  # traces of at most `n_step` rows use the ratio itself
            prob_taken=lambda: policy.log_prob(raw_action).exp(),
        )
        return self.estimator.estimate(inputs, self.trace_clipping).q_target + entropy_cost

    def _compute_error(self, target: Tensor, q: Tensor, target_features: Tensor, rollout: Rollout) -> Tensor:
        """Return the ascent direction of each critic's Q [N, T, B] (Eq. 5); 0 where `clip_epsilon` forbids the step."""
        clip = self.settings.clip_epsilon
        if clip is None:
            return target - q
        target_q = self._evaluate_taken(self.target.network, target_features[:-1], rollout.raw_action)[1]
        return clipped_error(target.expand_as(q), q, target_q, clip)

    def _evaluate_taken(
        self, critics: CriticEnsemble, features: Tensor, raw_action: Tensor, critic_indices: list[int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the outputs of M critics at rows [T, B].

        Returns:
            The outputs for every combination [M, T, B, K] (K is 1 with continuous dimensions: only the output for the
            taken combination is computed), and the outputs for the taken actions [M, T, B].
        """
        if self.family.n_continuous:
            values = critics(features, self.family.encode(raw_action).unsqueeze(-2), critic_indices)
            return values, values.squeeze(-1)
        values = critics(features, None, critic_indices)
        combination = self.family.find_combination(raw_action).expand(*values.shape[:-1], 1)
        return values, values.gather(-1, combination).squeeze(-1)

    def _evaluate_all_actions(
        self, critics: CriticEnsemble, features: Tensor, continuous_actions: Tensor, critic_indices: list[int]
    ) -> Tensor:
        """Return Q [..., K] of every combination with its continuous dimensions [..., K, c], one value of M critics."""
        encoded_actions = self.family.encode_per_combination(continuous_actions) if self.family.n_continuous else None
        return self._reduce_ensemble(critics(features, encoded_actions, critic_indices))

    def _evaluate_policy_actions(
        self, features: Tensor, q_all: Tensor, critic_indices: list[int], continuous_actions: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Return Q [T, B, K] of every combination, and its gradient with respect to its continuous dimensions.

        Args:
            features: [T, B, F] without gradient.
            q_all: The critics' outputs for every combination [N, T, B, K], used if there are no continuous dimensions.
            critic_indices: The critics of this update.
            continuous_actions: [T, B, K, c].
        """
        if not self.family.n_continuous:
            return self._reduce_ensemble(q_all.detach()[critic_indices]), None
        continuous_actions = continuous_actions.requires_grad_()
        q = self._evaluate_all_actions(self.critics, features, continuous_actions, critic_indices)
        (action_gradient,) = torch.autograd.grad(q, continuous_actions, torch.ones_like(q))
        return q.detach(), action_gradient

    def _sample_critics(self) -> list[int]:
        """Return the indices of M of the N critics (Chen et al. 2021, arXiv 2101.05982, Algorithm 1)."""
        n_critics, n_sampled = self.settings.ensemble_q_num, self.settings.ensemble_q_sample
        return list(range(n_critics)) if n_sampled == n_critics else torch.randperm(n_critics).tolist()[:n_sampled]

    def _reduce_ensemble(self, outputs: Tensor) -> Tensor:
        """Return one value [...] of the outputs of M critics [M, ...].

        The minimum (1812.05905, section 6) or the mean (Zhou et al. 2022, arXiv 2209.10081), on the scale of rewards.
        """
        values = unscale(outputs) if self.settings.rescale_values else outputs
        return values.amin(0) if self.takes_minimum else values.mean(0)

    def evaluate_actions(self, features: Tensor, raw_action: Tensor) -> Tensor:
        return self._evaluate_taken(self.critics, features, raw_action)[1]

    def update_targets(self, update: int) -> None:
        """Update the target critics (Algorithm 1), every `update_target_per_step` optimizer steps."""
        if update % self.settings.update_target_per_step == 0:
            self.target.polyak_update(self.settings.tau)
