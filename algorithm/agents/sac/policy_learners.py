"""The part of SAC that selects actions and learns from the critics: a stochastic policy, or the best action."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from algorithm.agents.actor_critic import make_parameter_group
from algorithm.agents.agent import ParameterGroup
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
    Temperature,
    Torso,
    batch_statistics,
)
from algorithm.networks.normalization import ValidRows, find_batch_norms
from algorithm.networks.passes import AutogradPass, Pass
from algorithm.specs import Role

# Continuous dimensions [T, B, K, c] -> Q [T, B, K], and its gradient [T, B, K, c]; None if all actions are discrete.
EvaluateActions = Callable[[Tensor], tuple[Tensor, Tensor | None]]


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
        return self._sample(self.network.run(features).outputs, obs)

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
            policy_pass: Pass = AutogradPass(all_outputs[:-1])
        else:  # the last row needs no gradient
            policy_pass = self.network.run(features[:-1])
            with torch.no_grad():
                all_outputs = torch.cat((policy_pass.outputs, self.network.run(features[-1:]).outputs))
        with torch.no_grad():
            return self._sample(all_outputs.detach(), obs), policy_pass

    def _sample(self, outputs: Tensor, obs: Mapping[str, Tensor]) -> PolicyOutput:
        """Return the policy and a sample of its actions, given the outputs of the network [T, B, S]."""
        policy = self.family(self.network.mask_logits(outputs, obs))
        reparameterized, alphas = policy.rsample(), self.temperature.alpha()
        terms = zip(alphas, self._log_prob_terms(policy, reparameterized), strict=True)
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

        Args:
            policy_output: The policy at T rows.
            outputs: The pass through its network.
            weights: Weights of the rows [T, B].
            evaluate_actions: The critics' values of actions.

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
        terms = self._log_prob_terms(policy, policy_output.reparameterized)
        if "alpha" in self.groups:
            with torch.no_grad():
                entropy_shortfall = [  # target entropy - entropy, of each kind
                    (weights * ((policy.probs * term).sum(-1) + target)).sum()
                    for term, target in zip(terms, self._target_entropies(policy), strict=True)
                ]
            with torch.inference_mode(False):  # autograd cannot save a tensor of inference mode
                losses["alpha"] = surrogate_loss(torch.stack(entropy_shortfall).clone(), self.temperature.log_alpha)

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

    def _log_prob_terms(self, policy: HybridDistribution, reparameterized: ReparameterizedSample) -> list[Tensor]:
        """Return log pi(d) and log pi(c|d) [..., K], for the kinds of dimension that the action has."""
        return self._select_kinds(policy.log_probs, reparameterized.log_prob)

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
    """Selection of the combination with the highest value, as in double DQN (van Hasselt et al. 2016).

    Raises:
        ValueError: The action has continuous dimensions.
    """

    def __init__(self, settings: SacSettings, family: HybridFamily, critics: CriticEnsemble, role: Role):
        if family.n_continuous:
            raise ValueError(f"discrete_dqn_like needs discrete branches only; the actions are {role.action_spec}")
        self.family = family
        self.q_policy = self.policy = GreedyQPolicy(critics, family, role.obs_specs, settings.discrete_dqn_epsilon)
        self.groups = {}

    @torch.no_grad()
    def evaluate(self, features: Tensor, obs: Mapping[str, Tensor]) -> PolicyOutput:
        policy = self.family((1 - self.q_policy.select_best(features, obs)) * MASKED_LOGIT)
        return PolicyOutput(
            policy=policy, reparameterized=policy.rsample(), entropy_cost=torch.zeros_like(policy.probs)
        )

    def compute_entropy_cost(self, policy: HybridDistribution, raw_action: Tensor) -> Tensor:
        return raw_action.new_zeros(raw_action.shape[:-1])
