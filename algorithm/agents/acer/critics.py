"""The critics of ACER: of each discrete action (section 3), of states, and stochastic dueling (section 5).

A critic determines the policy gradient's bias correction and the gradient of the values, in closed form. A rollout has
T rows and B columns; the policy and the values are evaluated at T+1 rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from algorithm.agents.settings import AcerSettings
from algorithm.distributions import Categorical, CategoricalFamily, ClosedFormDistribution, DistributionFamily
from algorithm.losses import bias_correction, sampled_bias_correction
from algorithm.returns import Targets


@dataclass(frozen=True)
class ActionAdvantages:
    """The network's advantages of single actions, for a stochastic dueling critic."""

    advantages: Tensor  # [2 + n, T, B] with gradient: of the taken action, of a', of u_1 .. u_n
    policy_sample: Tensor  # a' [T, B, size], a sample of the policy


class CriticOutput(ABC):
    """The values of a batch, and the gradients that follow from them; all tensors are without gradient.

    Args:
        values: The network's values [T+1, B, n_values].
        policy: The policy at the T+1 rows.
        raw_action: The taken actions [T, B, size].
        action_advantages: Those of a stochastic dueling critic; None for any other critic.
    """

    policy: ClosedFormDistribution  # at the T rows
    v: Tensor  # V(x_t) [T+1, B]
    q_taken: Tensor  # Q(x_t, a_t) [T, B]; with a critic of state values V(x_t)
    stream_values: Sequence[Tensor] = ()  # V(x_t) [T+1, B] of each reward stream

    def __init__(
        self,
        values: Tensor,
        policy: ClosedFormDistribution,
        raw_action: Tensor,
        action_advantages: ActionAdvantages | None,
    ):
        self.policy, self.raw_action = policy.select_rows(slice(-1)), raw_action

    def weigh_scores(
        self, weight: Tensor, behavior: ClosedFormDistribution, clip: float
    ) -> list[tuple[Tensor, Tensor]]:
        """Return actions [T, B, size] whose scores are summed in the policy gradient, with their weights [T, B].

        Args:
            weight: Weight of the taken action's score [T, B]: truncated importance times advantage.
            behavior: The policy that acted, at the T rows.
            clip: c, the bound of importance weights.
        """
        return [(self.raw_action, weight)]

    def policy_gradient(self, weight: Tensor, behavior: ClosedFormDistribution, clip: float) -> Tensor:
        """Return the policy gradient with respect to the statistics [T, B, S] (Eq. 9 or 15); see `weigh_scores`."""
        scores = (self.policy.score(*scored) for scored in self.weigh_scores(weight, behavior, clip))
        return reduce(torch.add, scores)

    def policy_objective(self, weight: Tensor, behavior: ClosedFormDistribution, clip: float) -> Tensor:
        """Return the objective [T, B] whose gradient, with constant weights, is `policy_gradient`: weights of log pi.

        The arguments are those of `weigh_scores`.
        """
        terms = (each * self.policy.log_prob(action) for action, each in self.weigh_scores(weight, behavior, clip))
        return reduce(torch.add, terms)

    def weigh_all_scores(self, weight: Tensor, behavior: ClosedFormDistribution, clip: float) -> Tensor:
        """Return the weight of every action's score [T, B, A] for a single discrete branch; see `weigh_scores`."""
        probs = as_categorical(self.policy).probs
        return torch.zeros_like(probs).scatter(-1, self.raw_action.long(), weight.unsqueeze(-1))

    def select_target(self, targets: Targets) -> Tensor:
        """Return the target of `q_taken` [T, B]."""
        return targets.q_target

    @abstractmethod
    def value_gradient(self, error: Tensor, targets: Targets) -> tuple[Tensor, Tensor | None]:
        """Return ascent directions of the values, and of `ActionAdvantages.advantages` if present.

        The first are [T, B, n], for the n values that are not values of reward streams.

        Args:
            error: Target minus `q_taken` [T, B].
            targets: The targets of Q and V.
        """


class ActionValues(CriticOutput):
    """Q(x, a) of every action of one discrete branch, with which the bias correction is exact."""

    policy: Categorical

    def __init__(self, values: Tensor, policy: ClosedFormDistribution, raw_action: Tensor, action_advantages: None):
        policy = as_categorical(policy)
        super().__init__(values, policy, raw_action.long(), action_advantages)
        self.v, self.action_values = policy.expectation(values), values[:-1]
        self.q_taken = self.action_values.gather(-1, self.raw_action).squeeze(-1)

    def value_gradient(self, error: Tensor, targets: Targets) -> tuple[Tensor, None]:
        """Eq. 6."""
        return torch.zeros_like(self.action_values).scatter_(-1, self.raw_action, error.unsqueeze(-1)), None

    def policy_gradient(self, weight: Tensor, behavior: ClosedFormDistribution, clip: float) -> Tensor:
        return self.policy.summed_score(self.weigh_all_scores(weight, behavior, clip))

    def policy_objective(self, weight: Tensor, behavior: ClosedFormDistribution, clip: float) -> Tensor:
        return (self.weigh_all_scores(weight, behavior, clip) * self.policy.log_probs).sum(-1)

    def weigh_all_scores(self, weight: Tensor, behavior: ClosedFormDistribution, clip: float) -> Tensor:
        """Eq. 9: the correction of every action, and for the taken action the truncated importance in addition."""
        advantage = self.action_values - self.v[:-1].unsqueeze(-1)
        correction = bias_correction(self.policy.probs, as_categorical(behavior).probs, advantage, clip)
        return correction.scatter_add(-1, self.raw_action, weight.unsqueeze(-1))


class StateValues(CriticOutput):
    """V(x) only, and the values of reward streams. Actions that were not taken have no value: no bias correction."""

    def __init__(self, values: Tensor, policy: ClosedFormDistribution, raw_action: Tensor, action_advantages: None):
        super().__init__(values, policy, raw_action, action_advantages)
        self.v, *self.stream_values = values.unbind(-1)
        self.q_taken = self.v[:-1]

    def select_target(self, targets: Targets) -> Tensor:
        return targets.value_target()

    def value_gradient(self, error: Tensor, targets: Targets) -> tuple[Tensor, None]:
        return error.unsqueeze(-1), None


class StochasticDueling(CriticOutput):
    """V(x) and A(x, a), for actions of any kind (section 5.1).

        Q(x, a) = V(x) + A(x, a) - 1/n sum_i A(x, u_i),   u_i ~ pi(.|x)                                   (Eq. 13)

    All actions of a state share the samples u_i. The bias correction is estimated with one more sample of the policy,
    a' (Eq. 15).
    """

    def __init__(
        self, values: Tensor, policy: ClosedFormDistribution, raw_action: Tensor, action_advantages: ActionAdvantages
    ):
        super().__init__(values, policy, raw_action, action_advantages)
        advantages = action_advantages.advantages.detach()
        centered = advantages - advantages[2:].mean(0)
        self.n_samples = len(advantages) - 2
        self.v = values.squeeze(-1)
        self.q_taken = self.v[:-1] + centered[0]  # Eq. 13
        self.policy_sample, self.policy_sample_advantage = action_advantages.policy_sample, centered[1]

    def value_gradient(self, error: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
        """Return the gradients of both errors: of Q (Eq. 13) and of V (Eq. 14).

        The error of Q reaches V, A(x, a) and every A(x, u_i), but not the policy through u_i.
        """
        sampled_gradient = (-error / self.n_samples).expand(self.n_samples, -1, -1)
        advantage_gradient = torch.cat((torch.stack((error, torch.zeros_like(error))), sampled_gradient))
        return (error + targets.value_target() - self.v[:-1]).unsqueeze(-1), advantage_gradient

    def weigh_scores(
        self, weight: Tensor, behavior: ClosedFormDistribution, clip: float
    ) -> list[tuple[Tensor, Tensor]]:
        """Eq. 15: the taken action, and the correction of a'."""
        rho = self.policy.log_ratio(behavior, self.policy_sample).clamp(-20, 20).exp()
        correction = sampled_bias_correction(rho, self.policy_sample_advantage, clip)
        return [(self.raw_action, weight), (self.policy_sample, correction)]


def select_critic(
    settings: AcerSettings, family: DistributionFamily[ClosedFormDistribution], n_streams: int
) -> type[CriticOutput]:
    """Return the critic: Q of each action of a single discrete branch; stochastic dueling for all other actions.

    Raises:
        ValueError: There are reward streams, but no state values.
    """
    if settings.critic == "state_value":
        return StateValues
    if n_streams:
        raise ValueError("critic action_value has no values of reward streams; use state_value")
    return ActionValues if isinstance(family, CategoricalFamily) else StochasticDueling


def as_categorical(distribution: ClosedFormDistribution) -> Categorical:
    """Return a distribution over the actions of a single discrete branch. Raises TypeError for any other one."""
    if not isinstance(distribution, Categorical):
        raise TypeError(f"expected the policy of a single discrete branch, not {type(distribution).__name__}")
    return distribution
