"""What ACER can value, and what follows from it: the rest of the bias correction, and what the critic climbs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from algorithm.distributions import Categorical, ClosedForm, Family
from algorithm.losses import bias_correction, sampled_bias_correction
from algorithm.networks import ActorCritic
from algorithm.returns.estimators import Targets


@dataclass(frozen=True)
class Opinion:
    """What a network says of single actions, beside its columns of values.

    `advantages` [2 + n, T, B], with gradient, of the taken action, of a' and of the u_i; a' `drawn` [T, B, size].
    """

    advantages: Tensor
    drawn: Tensor


class Judgement(ABC):
    """What a critic makes of a batch; nothing here has a gradient.

    `policy` at the T rows and the `sample` taken there, as its distribution reads it soonest; `v` [T+1, B] values of
    states, `taken` [T, B] of the taken actions.
    """

    policy: ClosedForm
    sample: Tensor
    v: Tensor
    taken: Tensor

    @abstractmethod
    def gradient(self, weight: Tensor, behavior: ClosedForm, clip: float) -> Tensor:
        """d J / d statistics [T, B, S]: the taken action's score times `weight` [T, B], and the correction behind c."""

    def gradient_in_probs(self, weight: Tensor, behavior: ClosedForm, clip: float) -> Tensor:
        """d J / d probabilities [T, B, A] of a single branch."""
        raise TypeError(f"{type(self).__name__} is not of a single branch")

    def target(self, targets: Targets) -> Tensor:
        """[T, B] the target of `taken`."""
        return targets.q

    @abstractmethod
    def pull(self, error: Tensor, targets: Targets) -> tuple[Tensor, Tensor | None]:
        """What values [T, B, ...] and the advantages of an opinion climb, `error` [T, B] being target - taken."""


class Critic(ABC):
    """`values` columns of the network's output; `encoded` numbers of an action that it reads beside the features."""

    values: int
    encoded: int = 0

    def ask(self, network: ActorCritic, features: Tensor, policy: ClosedForm, sample: Tensor) -> Opinion | None:
        """What the network says of actions, given features [T+1, B, F], the policy there and samples [T, B, size]."""
        return None

    @abstractmethod
    def judge(self, values: Tensor, policy: ClosedForm, sample: Tensor, opinion: Opinion | None) -> Judgement:
        """Of values [T+1, B, ...], the policy there, the samples taken [T, B, size] and what `ask` returned."""

    @abstractmethod
    def q(self, network: ActorCritic, features: Tensor, values: Tensor, policy: ClosedForm, sample: Tensor) -> Tensor:
        """Q(x, a) [...] of samples [..., size]. Raises ValueError where it is not known."""


class ActionValues(Critic):
    """Q(x, a) of every action of one branch: the correction is exact."""

    def __init__(self, actions: int):
        self.values = actions

    def judge(self, values: Tensor, policy: ClosedForm, sample: Tensor, opinion: Opinion | None) -> Judgement:
        return _OfEveryAction(values, policy, sample)

    def q(self, network: ActorCritic, features: Tensor, values: Tensor, policy: ClosedForm, sample: Tensor) -> Tensor:
        return values.gather(-1, sample.long()).squeeze(-1)


class _OfEveryAction(Judgement):
    def __init__(self, values: Tensor, policy: Categorical, sample: Tensor):
        self.v = policy.expectation(values)
        self.policy, self.values, self.sample = policy.rows(slice(-1)), values[:-1], sample.long()
        self.taken = self.values.gather(-1, self.sample).squeeze(-1)

    def gradient(self, weight: Tensor, behavior: Categorical, clip: float) -> Tensor:
        return self.policy.score_of_all(self._weights(weight, behavior, clip))

    def gradient_in_probs(self, weight: Tensor, behavior: Categorical, clip: float) -> Tensor:
        return self.policy.score_in_probs(self._weights(weight, behavior, clip))

    def pull(self, error: Tensor, targets: Targets) -> tuple[Tensor, None]:
        """Eq. 6."""
        return torch.zeros_like(self.values).scatter_(-1, self.sample, error.unsqueeze(-1)), None

    def _weights(self, weight: Tensor, behavior: Categorical, clip: float) -> Tensor:
        """Eq. 9: the weight of every action's score; the taken action's has the truncated importance on top."""
        advantage = self.values - self.v[:-1].unsqueeze(-1)
        correction = bias_correction(self.policy.probs, behavior.probs, advantage, clip)
        return correction.scatter_add(-1, self.sample, weight.unsqueeze(-1))


class StateValue(Critic):
    """V(x) alone. Nothing is known of actions that were not taken, so that the correction is dropped."""

    values = 1

    def judge(self, values: Tensor, policy: ClosedForm, sample: Tensor, opinion: Opinion | None) -> Judgement:
        return _OfStates(values, policy, sample)

    def q(self, network: ActorCritic, features: Tensor, values: Tensor, policy: ClosedForm, sample: Tensor) -> Tensor:
        raise ValueError("a critic of states (critic: state_value) knows no action's value")


class _OfStates(Judgement):
    def __init__(self, values: Tensor, policy: ClosedForm, sample: Tensor):
        self.v = values.squeeze(-1)
        self.taken = self.v[:-1]
        self.policy, self.sample = policy.rows(slice(-1)), sample

    def gradient(self, weight: Tensor, behavior: ClosedForm, clip: float) -> Tensor:
        return self.policy.score(self.sample, weight)

    def gradient_in_probs(self, weight: Tensor, behavior: Categorical, clip: float) -> Tensor:
        weights = torch.zeros_like(self.policy.probs).scatter(-1, self.sample.long(), weight.unsqueeze(-1))
        return self.policy.score_in_probs(weights)

    def target(self, targets: Targets) -> Tensor:
        return targets.v()

    def pull(self, error: Tensor, targets: Targets) -> tuple[Tensor, None]:
        return error.unsqueeze(-1), None


class StochasticDueling(Critic):
    """V(x) and A(x, a) for actions of any kind (Wang et al. 2017, section 5.1):

        Q(x, a) = V(x) + A(x, a) - 1/n sum_i A(x, u_i),   u_i ~ pi(.|x)                                   (Eq. 13)

    One set of u_i for each state serves all actions. The correction is that of one more sample of the policy.
    """

    values = 1

    def __init__(self, family: Family, samples: int):
        self.family, self.samples = family, samples
        self.encoded = family.encoded

    def ask(self, network: ActorCritic, features: Tensor, policy: ClosedForm, sample: Tensor) -> Opinion:
        drawn = policy.rows(slice(-1)).draw(1 + self.samples)
        actions = self.family.encode(torch.cat((sample.unsqueeze(0), drawn)))
        return Opinion(network.advantage(features[:-1], actions), drawn[0])

    def judge(self, values: Tensor, policy: ClosedForm, sample: Tensor, opinion: Opinion) -> Judgement:
        return _Dueling(values, policy, sample, opinion)

    def q(self, network: ActorCritic, features: Tensor, values: Tensor, policy: ClosedForm, sample: Tensor) -> Tensor:
        actions = self.family.encode(torch.cat((sample.unsqueeze(0), policy.draw(self.samples))))
        advantages = network.advantage(features, actions)
        return values.squeeze(-1) + advantages[0] - advantages[1:].mean(0)


class _Dueling(Judgement):
    def __init__(self, values: Tensor, policy: ClosedForm, sample: Tensor, opinion: Opinion):
        advantages = opinion.advantages.detach()
        above = advantages - advantages[2:].mean(0)
        self.policy, self.sample, self.drawn = policy.rows(slice(-1)), sample, opinion.drawn
        self.samples = len(advantages) - 2
        self.v = values.squeeze(-1)
        self.taken = self.v[:-1] + above[0]  # Eq. 13
        self.advantage_of_drawn = above[1]

    def gradient(self, weight: Tensor, behavior: ClosedForm, clip: float) -> Tensor:
        """Eq. 15."""
        rho = self.policy.log_ratio(behavior, self.drawn).clamp(-20, 20).exp()
        correction = sampled_bias_correction(rho, self.advantage_of_drawn, clip)
        return self.policy.score(self.sample, weight) + self.policy.score(self.drawn, correction)

    def pull(self, error: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
        """Both value targets; the error of Q reaches V, A(x, a) and every A(x, u_i), and not the policy through u_i."""
        of_others = (-error / self.samples).expand(self.samples, -1, -1)
        pulls = torch.cat((torch.stack((error, torch.zeros_like(error))), of_others))
        return (error + targets.v() - self.v[:-1]).unsqueeze(-1), pulls
