"""What ACER can value, and what follows from it: the rest of the bias correction, and what the critic climbs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from algorithm.distributions import Categorical, ClosedFormDistribution, DistributionFamily
from algorithm.losses import bias_correction, sampled_bias_correction
from algorithm.networks import ActorCritic
from algorithm.returns.estimators import Targets


@dataclass(frozen=True)
class ActionAdvantages:
    """What a network says of single actions, beside its columns of values.

    `advantages` [2 + n, T, B], with gradient, of the taken action, of a' and of the u_i; a' `drawn` [T, B, size].
    """

    advantages: Tensor
    policy_sample: Tensor


class CriticOutput(ABC):
    """What a critic makes of a batch; nothing here has a gradient.

    `policy` at the T rows and the `sample` taken there, as its distribution reads it soonest; `v` [T+1, B] values of
    states, `taken` [T, B] of the taken actions.
    """

    policy: ClosedFormDistribution
    raw_action: Tensor
    v: Tensor
    q_taken: Tensor

    @abstractmethod
    def policy_gradient(self, weight: Tensor, behavior: ClosedFormDistribution, clip: float) -> Tensor:
        """d J / d statistics [T, B, S]: the taken action's score times `weight` [T, B], and the correction behind c."""

    def policy_gradient_wrt_probs(self, weight: Tensor, behavior: ClosedFormDistribution, clip: float) -> Tensor:
        """d J / d probabilities [T, B, A] of a single branch."""
        raise TypeError(f"{type(self).__name__} is not of a single branch")

    def select_target(self, targets: Targets) -> Tensor:
        """[T, B] the target of `taken`."""
        return targets.q_target

    @abstractmethod
    def value_gradient(self, error: Tensor, targets: Targets) -> tuple[Tensor, Tensor | None]:
        """What values [T, B, ...] and the advantages of an opinion climb, `error` [T, B] being target - taken."""


class Critic(ABC):
    """`values` columns of the network's output; `encoded` numbers of an action that it reads beside the features."""

    n_values: int
    encoded_size: int = 0

    def evaluate_actions(
        self, network: ActorCritic, features: Tensor, policy: ClosedFormDistribution, raw_action: Tensor
    ) -> ActionAdvantages | None:
        """What the network says of actions, given features [T+1, B, F], the policy there and samples [T, B, size]."""
        return None

    @abstractmethod
    def evaluate(
        self,
        values: Tensor,
        policy: ClosedFormDistribution,
        raw_action: Tensor,
        action_advantages: ActionAdvantages | None,
    ) -> CriticOutput:
        """Of values [T+1, B, ...], the policy there, the samples taken [T, B, size] and what `ask` returned."""

    @abstractmethod
    def q(
        self, network: ActorCritic, features: Tensor, values: Tensor, policy: ClosedFormDistribution, raw_action: Tensor
    ) -> Tensor:
        """Q(x, a) [...] of samples [..., size]. Raises ValueError where it is not known."""


class ActionValueCritic(Critic):
    """Q(x, a) of every action of one branch: the correction is exact."""

    def __init__(self, n_actions: int):
        self.n_values = n_actions

    def evaluate(
        self,
        values: Tensor,
        policy: ClosedFormDistribution,
        raw_action: Tensor,
        action_advantages: ActionAdvantages | None,
    ) -> CriticOutput:
        return _ActionValueOutput(values, policy, raw_action)

    def q(
        self, network: ActorCritic, features: Tensor, values: Tensor, policy: ClosedFormDistribution, raw_action: Tensor
    ) -> Tensor:
        return values.gather(-1, raw_action.long()).squeeze(-1)


class _ActionValueOutput(CriticOutput):
    def __init__(self, values: Tensor, policy: Categorical, raw_action: Tensor):
        self.v = policy.expectation(values)
        self.policy, self.action_values, self.raw_action = policy.select_rows(slice(-1)), values[:-1], raw_action.long()
        self.q_taken = self.action_values.gather(-1, self.raw_action).squeeze(-1)

    def policy_gradient(self, weight: Tensor, behavior: Categorical, clip: float) -> Tensor:
        return self.policy.summed_score(self._score_weights(weight, behavior, clip))

    def policy_gradient_wrt_probs(self, weight: Tensor, behavior: Categorical, clip: float) -> Tensor:
        return self.policy.score_wrt_probs(self._score_weights(weight, behavior, clip))

    def value_gradient(self, error: Tensor, targets: Targets) -> tuple[Tensor, None]:
        """Eq. 6."""
        return torch.zeros_like(self.action_values).scatter_(-1, self.raw_action, error.unsqueeze(-1)), None

    def _score_weights(self, weight: Tensor, behavior: Categorical, clip: float) -> Tensor:
        """Eq. 9: the weight of every action's score; the taken action's has the truncated importance on top."""
        advantage = self.action_values - self.v[:-1].unsqueeze(-1)
        correction = bias_correction(self.policy.probs, behavior.probs, advantage, clip)
        return correction.scatter_add(-1, self.raw_action, weight.unsqueeze(-1))


class StateValueCritic(Critic):
    """V(x) alone. Nothing is known of actions that were not taken, so that the correction is dropped."""

    n_values = 1

    def evaluate(
        self,
        values: Tensor,
        policy: ClosedFormDistribution,
        raw_action: Tensor,
        action_advantages: ActionAdvantages | None,
    ) -> CriticOutput:
        return _StateValueOutput(values, policy, raw_action)

    def q(
        self, network: ActorCritic, features: Tensor, values: Tensor, policy: ClosedFormDistribution, raw_action: Tensor
    ) -> Tensor:
        raise ValueError("a critic of states (critic: state_value) knows no action's value")


class _StateValueOutput(CriticOutput):
    def __init__(self, values: Tensor, policy: ClosedFormDistribution, raw_action: Tensor):
        self.v = values.squeeze(-1)
        self.q_taken = self.v[:-1]
        self.policy, self.raw_action = policy.select_rows(slice(-1)), raw_action

    def policy_gradient(self, weight: Tensor, behavior: ClosedFormDistribution, clip: float) -> Tensor:
        return self.policy.score(self.raw_action, weight)

    def policy_gradient_wrt_probs(self, weight: Tensor, behavior: Categorical, clip: float) -> Tensor:
        weights = torch.zeros_like(self.policy.probs).scatter(-1, self.raw_action.long(), weight.unsqueeze(-1))
        return self.policy.score_wrt_probs(weights)

    def select_target(self, targets: Targets) -> Tensor:
        return targets.value_target()

    def value_gradient(self, error: Tensor, targets: Targets) -> tuple[Tensor, None]:
        return error.unsqueeze(-1), None


class StochasticDuelingCritic(Critic):
    """V(x) and A(x, a) for actions of any kind (Wang et al. 2017, section 5.1):

        Q(x, a) = V(x) + A(x, a) - 1/n sum_i A(x, u_i),   u_i ~ pi(.|x)                                   (Eq. 13)

    One set of u_i for each state serves all actions. The correction is that of one more sample of the policy.
    """

    n_values = 1

    def __init__(self, family: DistributionFamily, n_samples: int):
        self.family, self.n_samples = family, n_samples
        self.encoded_size = family.encoded_size

    def evaluate_actions(
        self, network: ActorCritic, features: Tensor, policy: ClosedFormDistribution, raw_action: Tensor
    ) -> ActionAdvantages:
        policy_samples = policy.select_rows(slice(-1)).draw_samples(1 + self.n_samples)
        actions = self.family.encode(torch.cat((raw_action.unsqueeze(0), policy_samples)))
        return ActionAdvantages(network.advantage_head(features[:-1], actions), policy_samples[0])

    def evaluate(
        self, values: Tensor, policy: ClosedFormDistribution, raw_action: Tensor, action_advantages: ActionAdvantages
    ) -> CriticOutput:
        return _DuelingOutput(values, policy, raw_action, action_advantages)

    def q(
        self, network: ActorCritic, features: Tensor, values: Tensor, policy: ClosedFormDistribution, raw_action: Tensor
    ) -> Tensor:
        actions = self.family.encode(torch.cat((raw_action.unsqueeze(0), policy.draw_samples(self.n_samples))))
        advantages = network.advantage_head(features, actions)
        return values.squeeze(-1) + advantages[0] - advantages[1:].mean(0)


class _DuelingOutput(CriticOutput):
    def __init__(
        self, values: Tensor, policy: ClosedFormDistribution, raw_action: Tensor, action_advantages: ActionAdvantages
    ):
        advantages = action_advantages.advantages.detach()
        centered = advantages - advantages[2:].mean(0)
        self.policy, self.raw_action, self.policy_sample = (
            policy.select_rows(slice(-1)),
            raw_action,
            action_advantages.policy_sample,
        )
        self.n_samples = len(advantages) - 2
        self.v = values.squeeze(-1)
        self.q_taken = self.v[:-1] + centered[0]  # Eq. 13
        self.policy_sample_advantage = centered[1]

    def policy_gradient(self, weight: Tensor, behavior: ClosedFormDistribution, clip: float) -> Tensor:
        """Eq. 15."""
        rho = self.policy.log_ratio(behavior, self.policy_sample).clamp(-20, 20).exp()
        correction = sampled_bias_correction(rho, self.policy_sample_advantage, clip)
        return self.policy.score(self.raw_action, weight) + self.policy.score(self.policy_sample, correction)

    def value_gradient(self, error: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
        """Both value targets; the error of Q reaches V, A(x, a) and every A(x, u_i), and not the policy through u_i."""
        sampled_gradient = (-error / self.n_samples).expand(self.n_samples, -1, -1)
        advantage_gradient = torch.cat((torch.stack((error, torch.zeros_like(error))), sampled_gradient))
        return (error + targets.value_target() - self.v[:-1]).unsqueeze(-1), advantage_gradient
