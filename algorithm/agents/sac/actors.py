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

from algorithm.agents.agent import Group
from algorithm.distributions import FORBIDDEN, Conditional, Conditioned, Proposal
from algorithm.losses import surrogate
from algorithm.networks import ActorCritic, Blueprint, Critics, Deviation, Greedy, Policy, Temperature, Torso
from algorithm.specs import Role

Judge = Callable[[Tensor], tuple[Tensor, Tensor | None]]  # of numbers [..., K, c]: Q [..., K], and its slope there


KINDS = {"d": "discrete", "c": "continuous"}  # of actions, as metrics name them


@dataclass(frozen=True)
class Choices:
    """What may be done at some rows: combinations of branches, and the numbers that would be executed with each."""

    policy: Conditional  # without gradient
    proposal: Proposal
    cost: Tensor  # [..., K] alpha log pi: what each choice costs in entropy
    alpha: Tensor | float = 0.0  # of the numbers

    def rows(self, where: slice) -> Choices:
        """At some of the rows."""
        return Choices(self.policy.rows(where), self.proposal.rows(where), self.cost[where], self.alpha)


class Chooser(ABC):
    """Chooses actions, and learns from what the critics know."""

    policy: Policy
    groups: Mapping[str, Group]

    @abstractmethod
    def choices(self, features: Tensor, obs: Mapping[str, Tensor]) -> tuple[Choices, Tensor]:
        """What it would do at all rows [T+1, B], and its outputs [T, B, S] that say so, with gradient."""

    @abstractmethod
    def sample_cost(self, policy: Conditional, sample: Tensor) -> Tensor:
        """Return alpha log pi [...] of the executed actions of samples, without gradient."""

    @abstractmethod
    def losses(self, choices: Choices, outputs: Tensor, weights: Tensor, judge: Judge) -> dict[str, Tensor]:
        """Its groups' scalars over rows [T, B] of `weights`."""

    def told(self, choices: Choices) -> dict[str, Tensor]:
        """What there is to say of each row [T, B]."""
        return {}

    def temperatures(self) -> dict[str, Tensor]:
        """Every alpha."""
        return {}


class Soft(Chooser):
    """A stochastic policy that is paid for its entropy (Haarnoja et al. 2018), branches and numbers each at a rate."""

    def __init__(self, settings: Any, family: Conditioned, blueprint: Blueprint, torso: Torso, role: Role):
        self.family = family
        deviation = (
            Deviation(family.width, "state_dependent", settings.std_init, settings.std_min) if family.numbers else None
        )
        self.network = self.policy = ActorCritic(
            blueprint, role.obs_specs, family.statistics, 0, deviation, torso=torso
        )
        self.kinds = ["d"] * bool(family.branches) + ["c"] * bool(family.numbers)
        self.shares = {"d": settings.target_d_alpha, "c": settings.target_c_alpha}
        self.temperature = Temperature(len(self.kinds), settings.init_log_alpha, settings.use_auto_alpha)
        own = nn.ModuleList([self.network.heads])
        self.groups = {"policy": adam(own, settings, settings.learning_rate_policy, settings.max_grad_norm_policy)}
        if settings.use_auto_alpha:
            rate, clip = settings.learning_rate_alpha, settings.max_grad_norm_alpha
            self.groups["alpha"] = adam(self.temperature, settings, rate, clip)

    def choices(self, features: Tensor, obs: Mapping[str, Tensor]) -> tuple[Choices, Tensor]:
        outputs = self.network.outputs(features[:-1])
        with torch.no_grad():
            every = torch.cat((outputs, self.network.outputs(features[-1:])))
            policy = self.family(self.network.mask(every, obs))
            proposal, alphas = policy.propose(), self.temperature.alpha()
            terms = zip(alphas, self._terms(policy, proposal), strict=True)
            cost = reduce(torch.add, (alpha * term for alpha, term in terms))
            return Choices(policy, proposal, cost, alphas[-1]), outputs

    @torch.no_grad()
    def sample_cost(self, policy: Conditional, sample: Tensor) -> Tensor:
        terms = dict(zip("dc", policy.executed_log_probs(sample), strict=True))
        rates = zip(self.temperature.alpha(), self.kinds, strict=True)
        return reduce(torch.add, (alpha * terms[kind] for alpha, kind in rates))

    def losses(self, choices: Choices, outputs: Tensor, weights: Tensor, judge: Judge) -> dict[str, Tensor]:
        """Its scalars mean nothing, only their gradients do, which are those of Eq. 7 and of Eq. 17 with log alpha."""
        policy = choices.policy
        q, slope = judge(choices.proposal.numbers)
        with torch.no_grad():
            direction = policy.soft_gradient(choices.proposal, q - choices.cost, slope, choices.alpha)
            direction *= weights.unsqueeze(-1)
        losses = {"policy": surrogate(direction, outputs)}
        if "alpha" in self.groups:
            terms = self._terms(policy, choices.proposal)
            with torch.no_grad():
                above = [  # the target's entropy, by how much
                    (weights * ((policy.probs * term).sum(-1) + entropy)).sum()
                    for term, entropy in zip(terms, self._entropies(policy), strict=True)
                ]
            losses["alpha"] = surrogate(torch.stack(above), self.temperature.log_alpha)
        return losses

    def told(self, choices: Choices) -> dict[str, Tensor]:
        terms = self._terms(choices.policy, choices.proposal)
        entropies = [-(choices.policy.probs * term).sum(-1) for term in terms]
        return {f"train/entropy_{KINDS[kind]}": entropy for kind, entropy in zip(self.kinds, entropies, strict=True)}

    def temperatures(self) -> dict[str, Tensor]:
        return {
            f"train/alpha_{KINDS[kind]}": alpha
            for kind, alpha in zip(self.kinds, self.temperature.alpha(), strict=True)
        }

    def _terms(self, policy: Conditional, proposal: Proposal) -> list[Tensor]:
        """log pi(d) and log pi(c|d), those of them that there are."""
        terms = {"d": policy.log_probs, "c": proposal.density}
        return [terms[kind] for kind in self.kinds]

    def _entropies(self, policy: Conditional) -> list[Tensor | float]:
        """The target of each: a share of -1 nat for each number; of the largest entropy of what is allowed."""
        of_branches: Tensor | float = math.log(self.family.combinations)
        if self.network.masked:
            allowed = [(part.statistics > FORBIDDEN / 2).sum(-1) for part in policy.parts]
            of_branches = torch.stack(allowed).clamp(min=1).log().sum(0)
        targets = {"c": -self.shares["c"] * self.family.numbers, "d": self.shares["d"] * of_branches}
        return [targets[kind] for kind in self.kinds]


class EpsilonGreedy(Chooser):
    """No policy of its own: the combination that the critics value most, as in double DQN (van Hasselt et al. 2016)."""

    def __init__(self, settings: Any, family: Conditioned, critics: Critics, role: Role):
        if family.numbers:
            raise ValueError(f"discrete_dqn_like is of discrete branches alone, not of {role.action_spec}")
        self.family = family
        self.greedy = self.policy = Greedy(critics, family, role.obs_specs, settings.discrete_dqn_epsilon)
        self.groups = {}

    @torch.no_grad()
    def choices(self, features: Tensor, obs: Mapping[str, Tensor]) -> tuple[Choices, Tensor]:
        policy = self.family((1 - self.greedy.best(features, obs)) * FORBIDDEN)
        return Choices(policy, policy.propose(), torch.zeros_like(policy.probs)), policy.statistics

    def sample_cost(self, policy: Conditional, sample: Tensor) -> Tensor:
        return sample.new_zeros(sample.shape[:-1])

    def losses(self, choices: Choices, outputs: Tensor, weights: Tensor, judge: Judge) -> dict[str, Tensor]:
        return {}


def adam(module: nn.Module, settings: Any, rate: float, clip: float) -> Group:
    """A group of SAC, at a rate and with a clip of its own."""
    schedule, decay, epsilon = settings.learning_rate_schedule, settings.optimizer_decay, settings.optimizer_epsilon
    return Group(module, rate, schedule, "adam", decay, epsilon, False, clip, settings.optimizer_beta1)
