"""The critics of ACER: of each discrete action (section 3), of states, and stochastic dueling (section 5).

A critic determines the policy gradient's bias correction and the gradient of the values, in closed form. A rollout has
T rows and B columns; the policy and the values are evaluated at T+1 rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from algorithm.agents.acer.settings import AcerSettings
from algorithm.distributions import Categorical, CategoricalFamily, ClosedFormDistribution, DistributionFamily
from algorithm.losses import bias_correction, sampled_bias_correction
from algorithm.networks import ActorCritic, SeparateCritic
from algorithm.returns import Targets


@dataclass(frozen=True)
class ActionAdvantages:
    """The network's advantages of single actions, for a stochastic dueling critic."""

    advantages: Tensor  # [2 + n, T, B] with gradient: of the taken action, of a', of u_1 .. u_n
    policy_sample: Tensor  # a' [T, B, size], a sample of the policy


class CriticOutput(ABC):
    """The values of a batch, and the gradients that follow from them; all tensors are without gradient."""

    policy: ClosedFormDistribution  # at the T rows
    raw_action: Tensor  # the taken actions [T, B, size]
    v: Tensor  # V(x_t) [T+1, B]
    q_taken: Tensor  # Q(x_t, a_t) [T, B]; with a critic of state values V(x_t)
    stream_values: Sequence[Tensor] = ()  # V(x_t) [T+1, B] of each reward stream

    @abstractmethod
    def policy_gradient(self, weight: Tensor, behavior: ClosedFormDistribution, clip: float) -> Tensor:
        """Return the policy gradient with respect to the statistics [T, B, S] (Eq. 9 or 15).

        Args:
            weight: Weight of the taken action's score [T, B]: truncated importance times advantage.
            behavior: The policy that acted, at the T rows.
            clip: c, the bound of importance weights.
        """

    @abstractmethod
    def policy_objective(self, weight: Tensor, behavior: ClosedFormDistribution, clip: float) -> Tensor:
        """Return the objective [T, B] whose gradient, with constant weights, is `policy_gradient`: weights of log pi.

        The arguments are those of `policy_gradient`.
        """

    def gradients_wrt_probs(
        self, weight: Tensor, behavior: ClosedFormDistribution, average: ClosedFormDistribution, clip: float
    ) -> tuple[Tensor, Tensor]:
        """Return the gradients of J and of KL[average || policy] with respect to the probabilities, [T, B, A] each.

        Args:
            weight: As of `policy_gradient`.
            behavior: As of `policy_gradient`.
            average: The average policy at the T rows.
            clip: As of `policy_gradient`.

        Raises:
            TypeError: The policy is not a categorical distribution over a single discrete branch.
        """
        policy = _as_categorical(self.policy)
        gradient = policy.score_wrt_probs(self.score_weights(weight, behavior, clip))
        return gradient, policy.kl_gradient_wrt_probs(_as_categorical(average))

    def score_weights(self, weight: Tensor, behavior: ClosedFormDistribution, clip: float) -> Tensor:
        """Return the weight of every action's score [T, B, A] for a single discrete branch; see `policy_gradient`."""
        raise TypeError(f"{type(self).__name__} has no weights of single actions")

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


class ActionValueOutput(CriticOutput):
    """The output of `ActionValueCritic`."""

    policy: Categorical

    def __init__(self, values: Tensor, policy: ClosedFormDistribution, raw_action: Tensor, action_advantages: None):
        policy = _as_categorical(policy)
        self.v = policy.expectation(values)
        self.policy, self.action_values, self.raw_action = policy.select_rows(slice(-1)), values[:-1], raw_action.long()
        self.q_taken = self.action_values.gather(-1, self.raw_action).squeeze(-1)

    def value_gradient(self, error: Tensor, targets: Targets) -> tuple[Tensor, None]:
        """Eq. 6."""
        return torch.zeros_like(self.action_values).scatter_(-1, self.raw_action, error.unsqueeze(-1)), None

    def policy_gradient(self, weight: Tensor, behavior: ClosedFormDistribution, clip: float) -> Tensor:
        return self.policy.summed_score(self.score_weights(weight, behavior, clip))

    def policy_objective(self, weight: Tensor, behavior: ClosedFormDistribution, clip: float) -> Tensor:
        return (self.score_weights(weight, behavior, clip) * self.policy.log_probs).sum(-1)

    def score_weights(self, weight: Tensor, behavior: ClosedFormDistribution, clip: float) -> Tensor:
        """Eq. 9: the correction of every action, and for the taken action the truncated importance in addition."""
        advantage = self.action_values - self.v[:-1].unsqueeze(-1)
        correction = bias_correction(self.policy.probs, _as_categorical(behavior).probs, advantage, clip)
        return correction.scatter_add(-1, self.raw_action, weight.unsqueeze(-1))


class StateValueOutput(CriticOutput):
    """The output of `StateValueCritic`."""

    def __init__(self, values: Tensor, policy: ClosedFormDistribution, raw_action: Tensor, action_advantages: None):
        self.v, *self.stream_values = values.unbind(-1)
        self.q_taken = self.v[:-1]
        self.policy, self.raw_action = policy.select_rows(slice(-1)), raw_action

    def select_target(self, targets: Targets) -> Tensor:
        return targets.value_target()

    def value_gradient(self, error: Tensor, targets: Targets) -> tuple[Tensor, None]:
        return error.unsqueeze(-1), None

    def policy_gradient(self, weight: Tensor, behavior: ClosedFormDistribution, clip: float) -> Tensor:
        """Eq. 9, first term."""
        return self.policy.score(self.raw_action, weight)

    def policy_objective(self, weight: Tensor, behavior: ClosedFormDistribution, clip: float) -> Tensor:
        return weight * self.policy.log_prob(self.raw_action)

    def score_weights(self, weight: Tensor, behavior: ClosedFormDistribution, clip: float) -> Tensor:
        probs = _as_categorical(self.policy).probs
        return torch.zeros_like(probs).scatter(-1, self.raw_action.long(), weight.unsqueeze(-1))


class DuelingOutput(CriticOutput):
    """The output of `StochasticDuelingCritic`."""

    def __init__(
        self, values: Tensor, policy: ClosedFormDistribution, raw_action: Tensor, action_advantages: ActionAdvantages
    ):
        advantages = action_advantages.advantages.detach()
        centered = advantages - advantages[2:].mean(0)
        self.policy, self.raw_action = policy.select_rows(slice(-1)), raw_action
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

    def policy_gradient(self, weight: Tensor, behavior: ClosedFormDistribution, clip: float) -> Tensor:
        """Eq. 15."""
        correction = self._correct_bias(behavior, clip)
        return self.policy.score(self.raw_action, weight) + self.policy.score(self.policy_sample, correction)

    def policy_objective(self, weight: Tensor, behavior: ClosedFormDistribution, clip: float) -> Tensor:
        correction = self._correct_bias(behavior, clip)
        return weight * self.policy.log_prob(self.raw_action) + correction * self.policy.log_prob(self.policy_sample)

    def _correct_bias(self, behavior: ClosedFormDistribution, clip: float) -> Tensor:
        """Return the weight of the score of a' [T, B]."""
        rho = self.policy.log_ratio(behavior, self.policy_sample).clamp(-20, 20).exp()
        return sampled_bias_correction(rho, self.policy_sample_advantage, clip)


class Critic:
    """A kind of critic: the columns of the network that are its values, and the evaluation of a batch.

    Attributes:
        evaluate: returns the output for a batch, without gradient, given the network's values [T+1, B, n_values], the
            policy at the T+1 rows, the taken actions [T, B, size], and the result of `evaluate_actions`.
        n_values: columns of the network's output.
        encoded_size: numbers of an encoded action that the advantage head reads besides the features.
        samples_actions: whether action values are estimated with sampled actions.
    """

    evaluate: Callable[..., CriticOutput]
    n_values: int
    encoded_size: int = 0
    samples_actions: bool = False

    def evaluate_actions(
        self,
        network: ActorCritic | SeparateCritic,
        features: Tensor,
        policy: ClosedFormDistribution,
        raw_action: Tensor,
    ) -> ActionAdvantages | None:
        """Return the network's advantages of single actions, with gradient; None if the critic has no advantage head.

        Args:
            network: The network of the critic.
            features: [T+1, B, F].
            policy: The policy at the T+1 rows.
            raw_action: The taken actions [T, B, size].
        """
        return None


class ActionValueCritic(Critic):
    """Q(x, a) of every action of one discrete branch, with which the bias correction is exact."""

    evaluate = ActionValueOutput

    def __init__(self, n_actions: int):
        self.n_values = n_actions


class StateValueCritic(Critic):
    """V(x) only. Actions that were not taken have no value, so that the policy gradient has no bias correction.

    Args:
        n_streams: Number of reward streams, whose values follow V(x).
    """

    evaluate = StateValueOutput

    def __init__(self, n_streams: int):
        self.n_values = 1 + n_streams


class StochasticDuelingCritic(Critic):
    """V(x) and A(x, a), for actions of any kind (section 5.1).

        Q(x, a) = V(x) + A(x, a) - 1/n sum_i A(x, u_i),   u_i ~ pi(.|x)                                   (Eq. 13)

    All actions of a state share the samples u_i. The bias correction is estimated with one more sample of the policy,
    a' (Eq. 15).
    """

    evaluate = DuelingOutput
    n_values = 1
    samples_actions = True

    def __init__(self, family: DistributionFamily[ClosedFormDistribution], n_samples: int):
        self.family, self.n_samples = family, n_samples
        self.encoded_size = family.encoded_size

    def evaluate_actions(
        self,
        network: ActorCritic | SeparateCritic,
        features: Tensor,
        policy: ClosedFormDistribution,
        raw_action: Tensor,
    ) -> ActionAdvantages:
        policy_samples = policy.select_rows(slice(-1)).draw_samples(1 + self.n_samples)
        actions = self.family.encode(torch.cat((raw_action.unsqueeze(0), policy_samples)))
        return ActionAdvantages(network.advantage_head(features[:-1], actions), policy_samples[0])


def make_critic(settings: AcerSettings, family: DistributionFamily[ClosedFormDistribution], n_streams: int) -> Critic:
    """Return the critic: Q of each action of a single discrete branch; stochastic dueling for all other actions.

    Raises:
        ValueError: There are reward streams, but no state values.
    """
    if settings.critic == "state_value":
        return StateValueCritic(n_streams)
    if n_streams:
        raise ValueError("critic action_value has no values of reward streams; use state_value")
    if isinstance(family, CategoricalFamily):
        return ActionValueCritic(family.statistics_size)
    return StochasticDuelingCritic(family, settings.sdn_samples)


def _as_categorical(distribution: ClosedFormDistribution) -> Categorical:
    if not isinstance(distribution, Categorical):
        raise TypeError(f"expected the policy of a single discrete branch, not {type(distribution).__name__}")
    return distribution
