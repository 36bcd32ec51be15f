"""What ACER can value, and what follows from it: the rest of the bias correction, and what the critic climbs."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from algorithm.agents.estimators import Targets
from algorithm.distributions import Categorical, Distribution, Family
from algorithm.losses import bias_correction, sampled_bias_correction
from algorithm.networks import ActorCritic


class Judgement(ABC):
    """What a critic says of a batch. Nothing here has a gradient but `advantages`.

    `policy` at the T rows, `v` [T+1, B] values of states, `taken` [T, B] of the taken actions, `advantages` what it
    said of actions beside its columns of the network's output.
    """

    policy: Distribution
    v: Tensor
    taken: Tensor
    advantages: Tensor | None = None

    @abstractmethod
    def gradient(self, weight: Tensor, behavior: Distribution, clip: float) -> Tensor:
        """d J / d statistics [T, B, S]: the taken action's score times `weight` [T, B], and the correction behind c."""

    def gradient_in_probs(self, weight: Tensor, behavior: Distribution, clip: float) -> Tensor:
        """d J / d probabilities [T, B, A] of a single branch."""
        raise TypeError(f"{type(self).__name__} is not of a single branch")

    def target(self, targets: Targets) -> Tensor:
        """[T, B] the target of `taken`."""
        return targets.q

    @abstractmethod
    def pull(self, error: Tensor, targets: Targets) -> tuple[Tensor, Tensor | None]:
        """What the critic's columns [T, B, values] and its `advantages` climb, `error` being target - taken."""


class Critic(ABC):
    """`values` columns of the network's output; `encoded` numbers of an action that it reads beside the features."""

    values: int
    encoded: int = 0

    @abstractmethod
    def judge(
        self, network: ActorCritic, features: Tensor, values: Tensor, policy: Distribution, sample: Tensor
    ) -> Judgement:
        """Of features [T+1, B, F], values [T+1, B, ...], the policy there and the samples taken [T, B, size]."""

    @abstractmethod
    def q(self, network: ActorCritic, features: Tensor, values: Tensor, policy: Distribution, sample: Tensor) -> Tensor:
        """Q(x, a) [...] of samples [..., size]. Raises ValueError where it is not known."""


class ActionValues(Critic):
    """Q(x, a) of every action of one branch: the correction is exact."""

    def __init__(self, actions: int):
        self.values = actions

    def judge(
        self, network: ActorCritic, features: Tensor, values: Tensor, policy: Distribution, sample: Tensor
    ) -> Judgement:
        return _OfEveryAction(values, policy, sample)

    def q(self, network: ActorCritic, features: Tensor, values: Tensor, policy: Distribution, sample: Tensor) -> Tensor:
        return values.gather(-1, sample.long()).squeeze(-1)


class _OfEveryAction(Judgement):
    def __init__(self, values: Tensor, policy: Categorical, sample: Tensor):
        self.v = policy.expectation(values)
        self.policy, self.values, self.action = policy.rows(slice(-1)), values[:-1], sample.long()
        self.taken = self.values.gather(-1, self.action).squeeze(-1)

    def gradient(self, weight: Tensor, behavior: Categorical, clip: float) -> Tensor:
        return self.policy.score_of_all(self._weights(weight, behavior, clip))

    def gradient_in_probs(self, weight: Tensor, behavior: Categorical, clip: float) -> Tensor:
        return self.policy.score_in_probs(self._weights(weight, behavior, clip))

    def pull(self, error: Tensor, targets: Targets) -> tuple[Tensor, None]:
        """Eq. 6."""
        return torch.zeros_like(self.values).scatter_(-1, self.action, error.unsqueeze(-1)), None

    def _weights(self, weight: Tensor, behavior: Categorical, clip: float) -> Tensor:
        """Eq. 9: the weight of every action's score; the taken action's has the truncated importance on top."""
        advantage = self.values - self.v[:-1].unsqueeze(-1)
        correction = bias_correction(self.policy.probs, behavior.probs, advantage, clip)
        return correction.scatter_add(-1, self.action, weight.unsqueeze(-1))


class StateValue(Critic):
    """V(x) alone. Nothing is known of actions that were not taken, so that the correction is dropped."""

    values = 1

    def judge(
        self, network: ActorCritic, features: Tensor, values: Tensor, policy: Distribution, sample: Tensor
    ) -> Judgement:
        return _OfStates(values, policy, sample)

    def q(self, network: ActorCritic, features: Tensor, values: Tensor, policy: Distribution, sample: Tensor) -> Tensor:
        raise ValueError("a critic of states (critic: v) knows no action's value")


class _OfStates(Judgement):
    def __init__(self, values: Tensor, policy: Distribution, sample: Tensor):
        self.v = values.squeeze(-1)
        self.taken = self.v[:-1]
        self.policy, self.sample = policy.rows(slice(-1)), sample

    def gradient(self, weight: Tensor, behavior: Distribution, clip: float) -> Tensor:
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

    def judge(
        self, network: ActorCritic, features: Tensor, values: Tensor, policy: Distribution, sample: Tensor
    ) -> Judgement:
        policy = policy.rows(slice(-1))
        drawn = policy.draw(1 + self.samples)
        actions = self.family.encode(torch.cat((sample.unsqueeze(0), drawn)))
        return _Dueling(values, network.advantage(features[:-1], actions), policy, sample, drawn[0])

    def q(self, network: ActorCritic, features: Tensor, values: Tensor, policy: Distribution, sample: Tensor) -> Tensor:
        actions = self.family.encode(torch.cat((sample.unsqueeze(0), policy.draw(self.samples))))
        advantages = network.advantage(features, actions)
        return values.squeeze(-1) + advantages[0] - advantages[1:].mean(0)


class _Dueling(Judgement):
    """`advantages` [2 + n, T, B]: of the taken action, of the correction's a', of the u_i."""

    def __init__(self, values: Tensor, advantages: Tensor, policy: Distribution, sample: Tensor, drawn: Tensor):
        self.advantages = advantages
        self.policy, self.sample, self.drawn = policy, sample, drawn
        self.v = values.squeeze(-1)
        said = advantages.detach()
        baseline = said[2:].mean(0)
        self.taken = self.v[:-1] + said[0] - baseline  # Eq. 13
        self.advantage_of_drawn = said[1] - baseline

    def gradient(self, weight: Tensor, behavior: Distribution, clip: float) -> Tensor:
        """Eq. 15."""
        rho = (self.policy.log_prob(self.drawn) - behavior.log_prob(self.drawn)).clamp(-20, 20).exp()
        correction = sampled_bias_correction(rho, self.advantage_of_drawn, clip)
        return self.policy.score(self.sample, weight) + self.policy.score(self.drawn, correction)

    def pull(self, error: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
        """Both value targets; the error of Q reaches V, A(x, a) and every A(x, u_i), and not the policy through u_i."""
        samples = len(self.advantages) - 2
        pulls = torch.cat((torch.stack((error, torch.zeros_like(error))), (-error / samples).expand(samples, -1, -1)))
        return (error + targets.v() - self.v[:-1]).unsqueeze(-1), pulls
