"""Soft actor-critic (Haarnoja et al. 2018, arXiv 1812.05905), for actions of every kind.

Equations without another source are from that paper, in its order: in `critics` the critics (Eq. 5, with V of Eq. 3),
in `policy_learners` the policy (Eq. 7) and the temperatures (Eq. 17), then the target critics (Algorithm 1). Discrete
branches are summed over exactly (Christodoulou 2019, arXiv 1910.07207); for each of their K combinations the
continuous dimensions are sampled, with gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from algorithm.agents.actor_critic import make_parameter_group, make_replay_schedule
from algorithm.agents.agent import (
    Agent,
    LossResult,
    ParameterReset,
    RewardTransform,
    make_decision,
    select_statistics_rows,
    unroll,
)
from algorithm.agents.metrics import mean_weights, summarize_update, td_error_stats
from algorithm.agents.sac.critics import ActionEvaluator, Experience, TakenActions, make_critic
from algorithm.agents.sac.policy_learners import EpsilonGreedy, PolicyOutput, SacPolicyLearner, SoftPolicy
from algorithm.agents.settings import SacSettings
from algorithm.distributions import MASKED_LOGIT, HybridFamily
from algorithm.networks import Blueprint, CriticEnsemble, TargetNetwork, Torso, batch_statistics
from algorithm.networks.normalization import find_batch_norms
from algorithm.networks.passes import Pass
from algorithm.rollout import Decision, Rollout, Step
from algorithm.specs import ACTION_MASK, Role


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
        self.critic = make_critic(settings, is_continuous=bool(spec.continuous))
        torso, *target_torsos = (
            Torso(blueprint, role.obs_specs) for _ in range(2 if settings.target == "average" else 1)
        )
        # Without trained parameters the target torso computes the same features, so that one pass is enough.
        self.torso_is_trainable = any(parameter.requires_grad for parameter in torso.parameters())
        self.critics = self._make_critics(blueprint, torso)
        self.target: TargetNetwork[CriticEnsemble] | None = None
        if target_torsos:
            self.target = TargetNetwork(self.critics, self._make_critics(blueprint, target_torsos[0]))
            self.target_networks = {"target": self.target}
        self.evaluator = ActionEvaluator(self.family, self.critics, self.target.network if self.target else None)
        self.torso_has_batch_norms = bool(find_batch_norms([torso]))
        self.soft_policy: SoftPolicy | None = None
        if not settings.discrete_dqn_like:
            self.soft_policy = SoftPolicy(settings, self.family, blueprint, torso, role)
        self.policy_learner: SacPolicyLearner = self.soft_policy or EpsilonGreedy(
            settings, self.family, self.critics, role
        )
        self.policy = self.policy_learner.policy
        # The critics train the torso. In the flat parameters the policy's heads come after the torso, so that the
        # parameters of the policy are contiguous.
        critic_group = make_parameter_group(
            settings, self.critics, settings.learning_rate_critic, settings.max_grad_norm_critic
        )
        self.groups = {"critic": critic_group, **self.policy_learner.groups}
        self.schedule = make_replay_schedule(settings, torso, on_policy_updates=False)
        self.reward_transform = RewardTransform.from_settings(settings)
        self.needs_behavior = settings.use_n_step_is and settings.n_step > 1
        self.random_steps = settings.random_steps
        if self.random_steps and self.needs_behavior and spec.continuous:
            raise ValueError(
                "random_steps does not support importance ratios of continuous actions, since no stored statistics "
                "describe a uniform distribution: set n_step to 1, use_n_step_is to false, or random_steps to 0"
            )
        if settings.reset_every:
            self.reset = ParameterReset(
                every=settings.reset_every,
                shrink=settings.reset_shrink,
                make_groups=lambda: Sac(settings, blueprint, role, rng).groups,
            )

    def _make_critics(self, blueprint: Blueprint, torso: Torso) -> CriticEnsemble:
        family, critic = self.family, self.critic
        encoded_size, n_values = (family.encoded_size, 1) if family.n_continuous else (0, family.n_combinations)
        count = self.settings.ensemble_q_num
        return CriticEnsemble(blueprint, torso, encoded_size, n_values, count, critic.value_shape)

    def act_uniformly(self, step: Step, memory: np.ndarray) -> Decision:
        statistics = np.zeros((len(memory), self.family.statistics_size), np.float32)
        if (mask := step.obs.get(ACTION_MASK)) is not None:
            statistics[:, -mask.shape[1] :][mask == 0] = MASKED_LOGIT
        sample, behavior = self.family.sample_uniformly(statistics, self.rng)
        memory = self.policy.compute_memory(step.obs, memory)
        return make_decision(self.family, sample, behavior, memory)

    def loss(self, rollout: Rollout) -> tuple[dict[str, Tensor], LossResult]:
        features, target_features, acting_features = self._unroll_torsos(rollout)
        rollout = rollout.drop_burn_in()
        policy_is_manual = self.soft_policy is not None and bool(self.soft_policy.network.manual_stacks)
        is_manual = policy_is_manual and bool(self.critics.manual_stacks) and not self.torso_is_trainable
        with torch.inference_mode(is_manual):
            return self._compute_losses(rollout, features, target_features, acting_features)

    def _compute_losses(
        self, rollout: Rollout, features: Tensor, target_features: Tensor, acting_features: Tensor
    ) -> tuple[dict[str, Tensor], LossResult]:
        """Return the result of `loss` for the rows after the burn-in, given the features of `_unroll_torsos`."""
        valid, critic_indices = rollout.valid, self._sample_critics()
        weights = mean_weights(valid, rollout.weight)
        learned, steps = self._evaluate_policy(rollout, features.detach(), acting_features)
        next_steps = steps.select_rows(slice(-len(rollout), None))

        # Eq. 5: the critics learn from r + gamma V(x').
        values, taken, next_values = self.evaluator.evaluate_pairs(
            rollout, features, target_features, next_steps.reparameterized.actions, critic_indices
        )
        with torch.no_grad():
            experience = self._make_experience(rollout, target_features, steps, next_steps, critic_indices)
            critic = self.critic.evaluate(taken.outputs.detach(), next_values, experience)
            direction = weights[(..., *[None] * len(self.critic.value_shape))] * critic.ascent_direction
        losses = {"critic": taken.make_loss(direction)}
        compute_policy_metrics: Callable[[], dict[str, Tensor]] = dict
        if self.soft_policy and learned:
            evaluate_actions = partial(
                self.evaluator.evaluate_policy_actions, self.critic, acting_features[:-1], values, critic_indices
            )
            policy_losses, compute_policy_metrics = self.soft_policy.compute_losses(*learned, weights, evaluate_actions)
            losses |= policy_losses
        taken_values = taken.outputs  # the report refers to no outputs with gradient, which would keep the graph

        def compute_metrics() -> dict[str, Tensor]:
            values = self.critic.compute_values(taken_values).mean(0)
            metric_values = {"train/critic_loss": critic.compute_loss(), "train/value": values}
            further_values = {**compute_policy_metrics(), **self.critic.compute_metrics(experience)}
            plain_weights = mean_weights(valid, torch.ones_like(rollout.weight))
            target_values = critic.compute_target_values()
            summary = summarize_update(plain_weights, metric_values, target_values, values, further_values)
            return {**summary, **self.policy_learner.get_temperatures()}

        report = LossResult(
            compute_metrics,
            lambda: td_error_stats(valid, critic.compute_error()),
            features,
            compute_row_errors=critic.compute_error,
        )
        return losses, report

    def _unroll_torsos(self, rollout: Rollout) -> tuple[Tensor, Tensor, Tensor]:
        """Return features [T+1, B, F] of the critics with gradient, of the target critics, and of the policy.

        Batch norms use the statistics of all rows, states and next states, in the features of critics and target
        critics, and running statistics in those of the policy.
        """
        rows = partial(select_statistics_rows, rollout)
        with batch_statistics(rows, commits=True):
            features = unroll(self.critics.torso, rollout)
        target_features = acting_features = features.detach()
        with torch.no_grad():
            if self.target and self.torso_is_trainable:
                with batch_statistics(rows):
                    target_features = unroll(self.target.network.torso, rollout)
            if self.torso_has_batch_norms:
                acting_features = unroll(self.critics.torso, rollout)
        return features, target_features, acting_features

    def _evaluate_policy(
        self, rollout: Rollout, features: Tensor, acting_features: Tensor
    ) -> tuple[tuple[PolicyOutput, Pass] | None, PolicyOutput]:
        """Return the policy at the rows of a rollout.

        Without batch norms, the losses of the actor (at the first T rows) and the targets (at the last T rows) use the
        same sample of the policy's actions at each row.

        Args:
            rollout: T rows.
            features: Features of the update [T+1, B, F] without gradient.
            acting_features: Features with running statistics [T+1, B, F] without gradient.

        Returns:
            The policy at the first T rows with the statistics of the batch, and the pass through its network, or None
            if it is not updated; and the policy for the targets, at the last T rows, or at all for several steps.
        """
        learned, obs = None, rollout.obs
        if self.soft_policy and self.update % self.settings.policy_update_every == 0:
            steps, outputs = self.soft_policy.evaluate_for_update(
                features, obs, partial(select_statistics_rows, rollout)
            )
            learned = steps.select_rows(slice(-1)), outputs
        if learned is None or self.policy_learner.has_batch_norms or self.torso_has_batch_norms:
            first = 0 if self.settings.n_step > 1 else 1  # one-step targets read the policy of the next rows only
            next_obs = {name: value[first:] for name, value in obs.items()}
            steps = self.policy_learner.evaluate(acting_features[first:], next_obs)
        return learned, steps

    def _make_experience(
        self,
        rollout: Rollout,
        target_features: Tensor,
        steps: PolicyOutput,
        next_steps: PolicyOutput,
        critic_indices: Sequence[int] | None,
    ) -> Experience:
        """Return the rows of the batch with the values from which a critic computes its target.

        Args:
            rollout: T rows.
            target_features: Features of the target critics [T+1, B, F].
            steps: The policy at the T+1 rows; only read for targets of several steps.
            next_steps: The policy at the last T of them.
            critic_indices: The critics of this update; None: all.
        """
        alpha_scale, raw_action, taken = self.settings.alpha_critic_scale, rollout.raw_action, None
        if self.settings.n_step > 1:
            distribution = steps.policy.select_rows(slice(-1))
            taken = TakenActions(
                raw_action=raw_action,
                policy=distribution,
                behavior=self.family(rollout.behavior),
                entropy_cost=alpha_scale * self.policy_learner.compute_entropy_cost(distribution, raw_action),
            )

        def evaluate_target(indices: Sequence[int] | None) -> Tensor:
            with batch_statistics(rollout.valid):
                critics = self.evaluator.target_critics or self.critics
                return self.evaluator.evaluate_taken(critics, target_features[:-1], raw_action, indices)[1]

        cost = next_steps.entropy_cost
        return Experience(
            reward=rollout.reward,
            discount=self.settings.gamma * rollout.alive,
            valid=rollout.valid,
            next_probs=next_steps.policy.probs,
            next_entropy_cost=cost if alpha_scale == 1 else alpha_scale * cost,
            taken=taken,
            critic_indices=critic_indices,
            evaluate_target=evaluate_target,
        )

    def _sample_critics(self) -> list[int] | None:
        """Return the indices of M of the N critics (Chen et al. 2021, arXiv 2101.05982, Algorithm 1); None for all."""
        n_critics, n_sampled = self.settings.ensemble_q_num, self.settings.ensemble_q_sample
        return None if n_sampled == n_critics else torch.randperm(n_critics).tolist()[:n_sampled]

    def evaluate_actions(self, features: Tensor, raw_action: Tensor) -> Tensor:
        return self.critic.compute_values(self.evaluator.evaluate_taken(self.critics, features, raw_action)[1])

    def update_targets(self, update: int) -> None:
        """Update the target critics (Algorithm 1), every `update_target_per_step` optimizer steps."""
        if self.target and update % self.settings.update_target_per_step == 0:
            self.target.polyak_update(self.settings.tau)
