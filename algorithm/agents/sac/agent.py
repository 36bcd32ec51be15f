"""Soft actor-critic (Haarnoja et al. 2018, arXiv 1812.05905), for actions of every kind.

Equations without another source are from that paper, in its order: in `critics` the critics (Eq. 5, with V of Eq. 3),
here the policy (Eq. 7) and the temperatures (Eq. 17), then the target critics (Algorithm 1). Discrete branches are
summed over exactly (Christodoulou 2019, arXiv 1910.07207); for each of their K combinations the continuous dimensions
are sampled, with gradient.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from algorithm.agents.actor_critic import make_parameter_group, make_replay_schedule
from algorithm.agents.agent import (
    Agent,
    LossResult,
    ParameterGroup,
    ParameterReset,
    RewardTransform,
    make_decision,
    select_statistics_rows,
    unroll,
)
from algorithm.agents.metrics import mean_weights, summarize_update, td_error_stats
from algorithm.agents.sac.critics import ActionEvaluator, Experience, TakenActions, make_critic
from algorithm.agents.sac.transitions import join_steps
from algorithm.agents.settings import SacSettings
from algorithm.distributions import MASKED_LOGIT, HybridDistribution, HybridFamily, ReparameterizedSample
from algorithm.losses import surrogate_loss
from algorithm.networks import (
    ActorCritic,
    Blueprint,
    CriticEnsemble,
    GreedyQPolicy,
    Policy,
    StdHead,
    TargetNetwork,
    Temperature,
    Torso,
    batch_statistics,
)
from algorithm.networks.normalization import ValidRows, find_batch_norms
from algorithm.networks.passes import AutogradPass, Pass
from algorithm.rollout import COLLECTED, Decision, Rollout, Step
from algorithm.specs import ACTION_MASK, Role

# Continuous dimensions [T, B, K, c] -> Q [T, B, K], and its gradient [T, B, K, c]; None if all actions are discrete.
EvaluateActions = Callable[[Tensor], tuple[Tensor, Tensor | None]]


class Sac(Agent):
    """SAC with an ensemble of critics, multi-step targets, and a temperature for each kind of action dimension.

    Raises:
        ValueError: The settings do not suit the kind of action.
    """

    Settings = SacSettings
    family: HybridFamily

    def __init__(self, settings: SacSettings, blueprint: Blueprint, role: Role, rng: np.random.Generator):
        spec = role.action_spec
        if settings.discrete_dqn_like and spec.continuous:
            raise ValueError(f"discrete_dqn_like needs discrete branches only; the actions are {spec}")
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
        self.target_torso = target_torsos[0] if target_torsos and self.torso_is_trainable else None
        self.evaluator = ActionEvaluator(self.family, self.critics, self.target.network if self.target else None)
        self.torso_has_batch_norms = bool(find_batch_norms([torso]))
        self.joins_steps = settings.learned_rows == "first"
        self.n_step = 1 if self.joins_steps else settings.n_step  # of the rows that the critics learn from
        if self.joins_steps and (self.torso_has_batch_norms or torso.stored_state_size):
            raise ValueError("learned_rows first needs a network without batch norms and memory before its critics")
        self.soft_policy: SoftPolicy | None = None
        self.policy_learner: SacPolicyLearner
        if settings.discrete_dqn_like:
            critics, epsilon = (self.critics, self.critic.compute_values), settings.discrete_dqn_epsilon
            self.policy_learner = EpsilonGreedy(GreedyQPolicy(*critics, self.family, role.obs_specs, epsilon))
            self.random_decay_steps = settings.discrete_dqn_epsilon_steps
        else:
            self.policy_learner = self.soft_policy = SoftPolicy(settings, self.family, blueprint, torso, role)
        self.policy = self.policy_learner.policy
        # The critics train the torso. In the flat parameters the policy's heads come after the torso, so that the
        # parameters of the policy are contiguous.
        critic_group = make_parameter_group(
            settings, self.critics, settings.learning_rate_critic, settings.max_grad_norm_critic
        )
        self.groups = {"critic": critic_group, **self.policy_learner.groups}
        self.schedule = make_replay_schedule(settings, self.policy, on_policy_updates=False)
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
        if self.joins_steps and (rollout.index != COLLECTED).all():
            transitions = join_steps(rollout, self.settings.gamma)
            rollout, discount = transitions.rollout, transitions.discount
            features = transitions.unroll(self.critics.torso, self.target_torso)
        else:
            features = self._unroll_torsos(rollout)
            rollout = rollout.drop_burn_in()
            discount = self.settings.gamma * rollout.alive
        policy_is_manual = self.soft_policy is not None and bool(self.soft_policy.network.manual_stacks)
        is_manual = policy_is_manual and bool(self.critics.manual_stacks) and not self.torso_is_trainable
        with torch.inference_mode(is_manual):
            return self._compute_losses(rollout, discount, *features)

    def _compute_losses(
        self, rollout: Rollout, discount: Tensor, features: Tensor, target_features: Tensor, acting_features: Tensor
    ) -> tuple[dict[str, Tensor], LossResult]:
        """Return the result of `loss` for rows after the burn-in, their discounts, and features of `_unroll_torsos`."""
        valid, critic_indices = rollout.valid, self._sample_critics()
        weights = mean_weights(valid, rollout.weight)
        learned, steps = self._evaluate_policy(rollout, features.detach(), acting_features)
        next_steps = steps.select_rows(slice(-len(rollout), None))

        # Eq. 5: the critics learn from r + gamma V(x').
        values, taken, next_values = self.evaluator.evaluate_pairs(
            rollout, features, target_features, next_steps.reparameterized.actions, critic_indices
        )
        with torch.no_grad():
            experience = self._make_experience(rollout, discount, target_features, steps, next_steps, critic_indices)
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
        taken_values = taken.outputs  # the result refers to no outputs with gradient, which would keep the graph

        def compute_metrics() -> dict[str, Tensor]:
            values = self.critic.compute_values(taken_values).mean(0)
            metric_values = {"train/critic_loss": critic.compute_loss(), "train/value": values}
            further_values = {**compute_policy_metrics(), **self.critic.compute_metrics(experience)}
            plain_weights = mean_weights(valid, torch.ones_like(rollout.weight))
            target_values = critic.compute_target_values()
            summary = summarize_update(plain_weights, metric_values, target_values, values, further_values)
            return {**summary, **self.policy_learner.get_temperatures()}

        result = LossResult(
            compute_metrics,
            lambda: td_error_stats(valid, critic.compute_error()),
            None if self.joins_steps else features,  # auxiliaries need those of all rows
            compute_row_errors=critic.compute_error,
        )
        return losses, result

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
            if self.target_torso:
                with batch_statistics(rows):
                    target_features = unroll(self.target_torso, rollout)
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
            first = 0 if self.n_step > 1 else 1  # one-step targets read the policy of the next rows only
            next_obs = {name: value[first:] for name, value in obs.items()}
            steps = self.policy_learner.evaluate(acting_features[first:], next_obs)
        return learned, steps

    def _make_experience(
        self,
        rollout: Rollout,
        discount: Tensor,
        target_features: Tensor,
        steps: PolicyOutput,
        next_steps: PolicyOutput,
        critic_indices: Sequence[int] | None,
    ) -> Experience:
        """Return the rows of the batch with the values from which a critic computes its target.

        Args:
            rollout: T rows.
            discount: The discounts of their next states [T, B]; 0 after a termination.
            target_features: Features of the target critics [T+1, B, F].
            steps: The policy at the T+1 rows; only read for targets of several steps.
            next_steps: The policy at the last T of them.
            critic_indices: The critics of this update; None: all.
        """
        alpha_scale, raw_action, taken = self.settings.alpha_critic_scale, rollout.raw_action, None
        if self.n_step > 1:
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
            discount=discount,
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


@dataclass(frozen=True, kw_only=True)
class PolicyOutput:
    """The policy at some rows, with a sample of the continuous dimensions for each of K combinations of branches."""

    policy: HybridDistribution  # without gradient
    reparameterized: ReparameterizedSample
    entropy_cost: Tensor  # alpha log pi of each combination [..., K]
    alpha: Tensor | float = 0.0  # temperature of the continuous dimensions; has no effect without any

    def select_rows(self, where: slice) -> PolicyOutput:
        """Return the part at some rows of the leading axis."""
        return PolicyOutput(
            policy=self.policy.select_rows(where),
            reparameterized=self.reparameterized.select_rows(where),
            entropy_cost=self.entropy_cost[where],
            alpha=self.alpha,
        )


class SacPolicyLearner(ABC):
    """The part of SAC that selects actions."""

    policy: Policy
    groups: Mapping[str, ParameterGroup]

    has_batch_norms: bool = False  # whether the policy's own layers contain batch norms

    @abstractmethod
    def evaluate(self, features: Tensor, obs: Mapping[str, Tensor]) -> PolicyOutput:
        """Evaluate the policy at some rows, with running statistics.

        Args:
            features: [T, B, F] without gradient.
            obs: Observations {name: [T, B, ...]}, of which the action mask is used.
        """

    @abstractmethod
    def compute_entropy_cost(self, policy: HybridDistribution, raw_action: Tensor) -> Tensor:
        """Return alpha log pi of the executed actions [...] of samples [..., size], without gradient."""

    def get_temperatures(self) -> dict[str, Tensor]:
        """Return every alpha, a scalar, by the name of its metric."""
        return {}


class SoftPolicy(SacPolicyLearner):
    """A stochastic policy with an entropy bonus, and a temperature for each kind of action dimension."""

    def __init__(self, settings: SacSettings, family: HybridFamily, blueprint: Blueprint, torso: Torso, role: Role):
        self.family = family
        std_head = (
            StdHead(family.n_means, "state_dependent", settings.std_init, settings.std_min, settings.std_max)
            if family.n_continuous
            else None
        )
        self.network = self.policy = ActorCritic(
            blueprint, role.obs_specs, family.statistics_size, 0, std_head, torso=torso
        )
        self.action_kinds = ["discrete"] * bool(family.branches) + ["continuous"] * bool(family.n_continuous)
        self.target_d_alpha = settings.target_d_alpha
        # Of one continuous dimension, for actions in [-1, 1]: that of a Gaussian with the std `target_entropy_std`
        # (FlashSAC), or `target_c_alpha` times -1.
        std, target_entropy = settings.target_entropy_std, -settings.target_c_alpha
        if std is not None:
            target_entropy = 0.5 * math.log(2 * math.pi * math.e * std**2)
        self.continuous_target_entropy = family.n_continuous * target_entropy
        self.temperature = Temperature(len(self.action_kinds), settings.init_log_alpha, settings.use_auto_alpha)
        heads = nn.ModuleList([self.network.heads])
        self.has_batch_norms = bool(find_batch_norms([heads]))
        self.groups = {
            "policy": make_parameter_group(
                settings, heads, settings.learning_rate_policy, settings.max_grad_norm_policy
            )
        }
        if settings.use_auto_alpha:
            group = make_parameter_group(
                settings, self.temperature, settings.learning_rate_alpha, settings.max_grad_norm_alpha
            )
            self.groups["alpha"] = replace(group, weight_decay=0.0)

    @torch.no_grad()
    def evaluate(self, features: Tensor, obs: Mapping[str, Tensor]) -> PolicyOutput:
        return self._sample(self.network.run(features, len(features)).outputs, obs)

    def evaluate_for_update(
        self, features: Tensor, obs: Mapping[str, Tensor], rows: ValidRows
    ) -> tuple[PolicyOutput, Pass]:
        """Evaluate the policy at all rows of a rollout, of which it learns from the first T.

        Batch norms use the statistics of all T+1 rows, states and next states.

        Args:
            features: [T+1, B, F] without gradient.
            obs: Observations {name: [T+1, B, ...]}, of which the action mask is used.
            rows: Rows [T+1, B] bool that count in these statistics, or a function that returns them.

        Returns:
            The policy at the T+1 rows, and the pass through its network at the first T.
        """
        if self.has_batch_norms:
            with batch_statistics(rows, commits=True):
                all_outputs = self.network.compute_outputs(features)
            policy_pass: Pass = AutogradPass(all_outputs[:-1], further_outputs=all_outputs[-1:].detach())
        else:
            policy_pass = self.network.run(features, len(features) - 1)
        with torch.no_grad():
            return self._sample(policy_pass.outputs, obs), policy_pass

    def _sample(self, outputs: Tensor, obs: Mapping[str, Tensor]) -> PolicyOutput:
        """Return the policy and a sample of its actions, given the outputs of the network [T, B, S]."""
        policy = self.family(self.network.mask_logits(outputs, obs))
        reparameterized, alphas = policy.rsample(), self.temperature.alpha()
        terms = zip(alphas, self._select_kinds(policy.log_probs, reparameterized.log_prob), strict=True)
        entropy_cost = reduce(torch.add, (alpha * log_prob for alpha, log_prob in terms))
        return PolicyOutput(policy=policy, reparameterized=reparameterized, entropy_cost=entropy_cost, alpha=alphas[-1])

    @torch.no_grad()
    def compute_entropy_cost(self, policy: HybridDistribution, raw_action: Tensor) -> Tensor:
        terms = self._select_kinds(*policy.action_log_probs(raw_action))
        return reduce(torch.add, (alpha * term for alpha, term in zip(self.temperature.alpha(), terms, strict=True)))

    def compute_losses(
        self, policy_output: PolicyOutput, outputs: Pass, weights: Tensor, evaluate_actions: EvaluateActions
    ) -> tuple[dict[str, Tensor], Callable[[], dict[str, Tensor]]]:
        """Return the loss of each group, with the gradients of Eq. 7 of 1812.05905, and of its Eq. 17 with log alpha.

        Returns:
            The losses, of which only the gradients have a meaning, and a function that computes metrics [T, B].
        """
        policy = policy_output.policy
        q, action_gradient = evaluate_actions(policy_output.reparameterized.actions)
        with torch.no_grad():
            direction = policy.soft_policy_gradient(
                policy_output.reparameterized, q - policy_output.entropy_cost, action_gradient, policy_output.alpha
            )
            direction *= weights.unsqueeze(-1)
        losses = {"policy": outputs.make_loss(direction)}
        terms = self._select_kinds(policy.log_probs, policy_output.reparameterized.log_prob)  # log pi(d), log pi(c|d)
        if "alpha" in self.groups:
            with torch.no_grad():
                entropy_shortfall = [  # target entropy - entropy, of each kind
                    (weights * ((policy.probs * term).sum(-1) + target)).sum()
                    for term, target in zip(terms, self._target_entropies(policy), strict=True)
                ]
            with torch.inference_mode(False):  # autograd cannot save a tensor of inference mode
                losses["alpha"] = surrogate_loss(torch.stack(entropy_shortfall), self.temperature.log_alpha)

        def compute_metrics() -> dict[str, Tensor]:
            entropies = {
                f"train/entropy_{kind}": -(policy.probs * term).sum(-1)
                for kind, term in zip(self.action_kinds, terms, strict=True)
            }
            return {**entropies, "train/policy_objective": (policy.probs * (q - policy_output.entropy_cost)).sum(-1)}

        return losses, compute_metrics

    def get_temperatures(self) -> dict[str, Tensor]:
        names = (f"train/alpha_{kind}" for kind in self.action_kinds)
        return dict(zip(names, self.temperature.alpha(), strict=True))

    def _target_entropies(self, policy: HybridDistribution) -> list[Tensor | float]:
        """Return the target entropy of each kind of dimension, in nats.

        For discrete branches it is `target_d_alpha` times the largest entropy of the allowed actions.
        """
        max_branch_entropy: Tensor | float = math.log(self.family.n_combinations)
        if self.network.n_masked_logits:
            allowed = [(part.statistics > MASKED_LOGIT / 2).sum(-1) for part in policy.branch_distributions]
            max_branch_entropy = torch.stack(allowed).clamp(min=1).log().sum(0)
        return self._select_kinds(self.target_d_alpha * max_branch_entropy, self.continuous_target_entropy)

    def _select_kinds(self, discrete: Any, continuous: Any) -> list[Any]:
        """Return the values of the kinds of dimension that the action has."""
        values = {"discrete": discrete, "continuous": continuous}
        return [values[kind] for kind in self.action_kinds]


class EpsilonGreedy(SacPolicyLearner):
    """Selection of the combination with the highest value, as in double DQN (van Hasselt et al. 2016)."""

    groups: Mapping[str, ParameterGroup] = {}

    def __init__(self, policy: GreedyQPolicy):
        self.q_policy = self.policy = policy

    @torch.no_grad()
    def evaluate(self, features: Tensor, obs: Mapping[str, Tensor]) -> PolicyOutput:
        policy = self.q_policy.family((1 - self.q_policy.select_best(features, obs)) * MASKED_LOGIT)
        return PolicyOutput(
            policy=policy, reparameterized=policy.rsample(), entropy_cost=torch.zeros_like(policy.probs)
        )

    def compute_entropy_cost(self, policy: HybridDistribution, raw_action: Tensor) -> Tensor:
        return raw_action.new_zeros(raw_action.shape[:-1])
