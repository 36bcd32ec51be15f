"""The actor of SAC that selects actions by the values of the critics."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from algorithm.agents.sac.actors import ActorLosses, EvaluateActions, PolicyOutput, SacActor
from algorithm.agents.sac.settings import SacSettings
from algorithm.distributions import MASKED_LOGIT, HybridDistribution, HybridFamily
from algorithm.networks import CriticEnsemble, GreedyQPolicy
from algorithm.networks.batch_statistics import ValidRows
from algorithm.networks.passes import AutogradPass, Pass
from algorithm.specs import Role


class EpsilonGreedy(SacActor):
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

    def evaluate_for_update(
        self, features: Tensor, obs: Mapping[str, Tensor], rows: ValidRows
    ) -> tuple[PolicyOutput, Pass]:
        output = self.evaluate(features, obs)
        return output, AutogradPass(output.policy.statistics)  # of which no loss is made, since nothing is trained

    def compute_entropy_cost(self, policy: HybridDistribution, raw_action: Tensor) -> Tensor:
        return raw_action.new_zeros(raw_action.shape[:-1])

    def compute_losses(
        self, policy_output: PolicyOutput, outputs: Pass, weights: Tensor, evaluate_actions: EvaluateActions
    ) -> ActorLosses:
        return ActorLosses()
