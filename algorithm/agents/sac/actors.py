"""Who chooses in SAC: a policy with its temperatures, or the critics themselves."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from algorithm.agents.agent import ParameterGroup
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
)
from algorithm.specs import Role

EvaluateActions = Callable[
    [Tensor], tuple[Tensor, Tensor | None]
]  # of numbers [..., K, c]: Q [..., K], and its slope there


KINDS = {"d": "discrete", "c": "continuous"}  # of actions, as metrics name them


@dataclass(frozen=True)
class PolicyOutput:
    """What may be done at some rows: combinations of branches, and the numbers that would be executed with each."""

    policy: HybridDistribution  # without gradient
    reparameterized: ReparameterizedSample
    entropy_cost: Tensor  # [..., K] alpha log pi: what each choice costs in entropy
    alpha: Tensor | float = 0.0  # of the numbers

    def select_rows(self, where: slice) -> PolicyOutput:
        """At some of the rows."""
        return PolicyOutput(
            self.policy.select_rows(where),
            self.reparameterized.select_rows(where),
            self.entropy_cost[where],
            self.alpha,
        )


class SacActor(ABC):
    """Chooses actions, and learns from what the critics know."""

    policy: Policy
    groups: Mapping[str, ParameterGroup]

    @abstractmethod
    def evaluate(self, features: Tensor, obs: Mapping[str, Tensor]) -> tuple[PolicyOutput, Tensor]:
        """What it would do at all rows [T+1, B], and its outputs [T, B, S] that say so, with gradient."""

    @abstractmethod
    def compute_entropy_cost(self, policy: HybridDistribution, raw_action: Tensor) -> Tensor:
        """Return alpha log pi [...] of the executed actions of samples, without gradient."""

    @abstractmethod
    def compute_losses(
        self, policy_output: PolicyOutput, outputs: Tensor, weights: Tensor, evaluate_actions: EvaluateActions
    ) -> dict[str, Tensor]:
        """Its groups' scalars over rows [T, B] of `weights`."""

    def compute_metrics(self, policy_output: PolicyOutput) -> dict[str, Tensor]:
        """What there is to say of each row [T, B]."""
        return {}

    def get_temperatures(self) -> dict[str, Tensor]:
        """Every alpha."""
        return {}


class SoftPolicy(SacActor):
    """A stochastic policy that is paid for its entropy (Haarnoja et al. 2018), branches and numbers each at a rate."""

    def __init__(self, settings: Any, family: HybridFamily, blueprint: Blueprint, torso: Torso, role: Role):
        self.family = family
        std_head = (
            StdHead(family.n_means, "state_dependent", settings.std_init, settings.std_min)
            if family.n_continuous
            else None
        )
        self.network = self.policy = ActorCritic(
            blueprint, role.obs_specs, family.statistics_size, 0, std_head, torso=torso
        )
        self.action_kinds = ["d"] * bool(family.branches) + ["c"] * bool(family.n_continuous)
        self.target_entropy_scales = {"d": settings.target_d_alpha, "c": settings.target_c_alpha}
        self.temperature = Temperature(len(self.action_kinds), settings.init_log_alpha, settings.use_auto_alpha)
        heads = nn.ModuleList([self.network.heads])
        self.groups = {
            "policy": make_adam_group(heads, settings, settings.learning_rate_policy, settings.max_grad_norm_policy)
        }
        if settings.use_auto_alpha:
            rate, clip = settings.learning_rate_alpha, settings.max_grad_norm_alpha
            self.groups["alpha"] = make_adam_group(self.temperature, settings, rate, clip)

    def evaluate(self, features: Tensor, obs: Mapping[str, Tensor]) -> tuple[PolicyOutput, Tensor]:
        outputs = self.network.compute_outputs(features[:-1])
        with torch.no_grad():
            all_outputs = torch.cat((outputs, self.network.compute_outputs(features[-1:])))
            policy = self.family(self.network.mask_logits(all_outputs, obs))
            reparameterized, alphas = policy.rsample(), self.temperature.alpha()
            terms = zip(alphas, self._log_prob_terms(policy, reparameterized), strict=True)
            entropy_cost = reduce(torch.add, (alpha * log_prob for alpha, log_prob in terms))
            return PolicyOutput(policy, reparameterized, entropy_cost, alphas[-1]), outputs

    @torch.no_grad()
    def compute_entropy_cost(self, policy: HybridDistribution, raw_action: Tensor) -> Tensor:
        terms = dict(zip("dc", policy.action_log_probs(raw_action), strict=True))
        rates = zip(self.temperature.alpha(), self.action_kinds, strict=True)
        return reduce(torch.add, (alpha * terms[kind] for alpha, kind in rates))

    def compute_losses(
        self, policy_output: PolicyOutput, outputs: Tensor, weights: Tensor, evaluate_actions: EvaluateActions
    ) -> dict[str, Tensor]:
        """Its scalars mean nothing, only their gradients do, which are those of Eq. 7 and of Eq. 17 with log alpha."""
        policy = policy_output.policy
        q, action_gradient = evaluate_actions(policy_output.reparameterized.actions)
        with torch.no_grad():
            direction = policy.soft_policy_gradient(
                policy_output.reparameterized, q - policy_output.entropy_cost, action_gradient, policy_output.alpha
            )
            direction *= weights.unsqueeze(-1)
        losses = {"policy": surrogate_loss(direction, outputs)}
        if "alpha" in self.groups:
            terms = self._log_prob_terms(policy, policy_output.reparameterized)
            with torch.no_grad():
                entropy_excess = [  # the target's entropy, by how much
                    (weights * ((policy.probs * term).sum(-1) + entropy)).sum()
                    for term, entropy in zip(terms, self._target_entropies(policy), strict=True)
                ]
            losses["alpha"] = surrogate_loss(torch.stack(entropy_excess), self.temperature.log_alpha)
        return losses

    def compute_metrics(self, policy_output: PolicyOutput) -> dict[str, Tensor]:
        terms = self._log_prob_terms(policy_output.policy, policy_output.reparameterized)
        entropies = [-(policy_output.policy.probs * term).sum(-1) for term in terms]
        return {
            f"train/entropy_{KINDS[kind]}": entropy for kind, entropy in zip(self.action_kinds, entropies, strict=True)
        }

    def get_temperatures(self) -> dict[str, Tensor]:
        return {
            f"train/alpha_{KINDS[kind]}": alpha
            for kind, alpha in zip(self.action_kinds, self.temperature.alpha(), strict=True)
        }

    def _log_prob_terms(self, policy: HybridDistribution, reparameterized: ReparameterizedSample) -> list[Tensor]:
        """log pi(d) and log pi(c|d), those of them that there are."""
        terms = {"d": policy.log_probs, "c": reparameterized.log_prob}
        return [terms[kind] for kind in self.action_kinds]

    def _target_entropies(self, policy: HybridDistribution) -> list[Tensor | float]:
        """The target of each: a share of -1 nat for each number; of the largest entropy of what is allowed."""
        max_branch_entropy: Tensor | float = math.log(self.family.n_combinations)
        if self.network.n_masked_logits:
            allowed = [(part.statistics > MASKED_LOGIT / 2).sum(-1) for part in policy.branch_distributions]
            max_branch_entropy = torch.stack(allowed).clamp(min=1).log().sum(0)
        targets = {
            "c": -self.target_entropy_scales["c"] * self.family.n_continuous,
            "d": self.target_entropy_scales["d"] * max_branch_entropy,
        }
        return [targets[kind] for kind in self.action_kinds]


class EpsilonGreedy(SacActor):
    """No policy of its own: the combination that the critics value most, as in double DQN (van Hasselt et al. 2016)."""

    def __init__(self, settings: Any, family: HybridFamily, critics: CriticEnsemble, role: Role):
        if family.n_continuous:
            raise ValueError(f"discrete_dqn_like is of discrete branches alone, not of {role.action_spec}")
        self.family = family
        self.q_policy = self.policy = GreedyQPolicy(critics, family, role.obs_specs, settings.discrete_dqn_epsilon)
        self.groups = {}

    @torch.no_grad()
    def evaluate(self, features: Tensor, obs: Mapping[str, Tensor]) -> tuple[PolicyOutput, Tensor]:
        policy = self.family((1 - self.q_policy.select_best(features, obs)) * MASKED_LOGIT)
        return PolicyOutput(policy, policy.rsample(), torch.zeros_like(policy.probs)), policy.statistics

    def compute_entropy_cost(self, policy: HybridDistribution, raw_action: Tensor) -> Tensor:
        return raw_action.new_zeros(raw_action.shape[:-1])

    def compute_losses(
        self, policy_output: PolicyOutput, outputs: Tensor, weights: Tensor, evaluate_actions: EvaluateActions
    ) -> dict[str, Tensor]:
        return {}


def make_adam_group(module: nn.Module, settings: Any, rate: float, clip: float) -> ParameterGroup:
    """A group of SAC, at a rate and with a clip of its own."""
    schedule, decay, epsilon = settings.learning_rate_schedule, settings.optimizer_decay, settings.optimizer_epsilon
    return ParameterGroup(module, rate, schedule, "adam", decay, epsilon, False, clip, settings.optimizer_beta1)
