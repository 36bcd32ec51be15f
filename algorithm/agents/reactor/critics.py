"""The critics of Reactor: a distribution of the return of every action (section 3.2), or its mean only.

A critic computes its target from the outputs of the target network, and the gradient of its loss in closed form. A
rollout has T rows and B columns; networks are evaluated at T+1 rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from algorithm.agents.actor_critic import make_support
from algorithm.agents.reactor.settings import ReactorSettings
from algorithm.distributions import Categorical
from algorithm.losses import cross_entropy, squared_error
from algorithm.returns import DISTRIBUTIONAL_ESTIMATORS, DistributionalInputs, Support, retrace


@dataclass(frozen=True, kw_only=True)
class Experience:
    """The rows of a batch from which a critic computes its target."""

    reward: Tensor  # [T, B]
    discount: Tensor  # gamma * alive [T, B]
    valid: Tensor  # [T, B]
    taken: Tensor  # index of the taken action, or combination of actions [T, B]
    trace: Tensor  # c = lambda min(1, rho) [T, B]
    policy: Categorical  # pi at all T+1 rows


@dataclass(frozen=True, kw_only=True)
class CriticOutput:
    """The values, targets and errors of a batch, without gradient."""

    q: Tensor  # Q(x_t, a) of every action [T, B, K], by the critic
    retrace_target: Tensor  # R_t, the Retrace target of Q(x_t, a_t) [T, B], by the target network
    ascent_direction: Tensor  # the negative gradient of the loss with respect to the critic's outputs [T, B, n_values]
    error: Tensor  # target - Q, or the total variation; its magnitude determines the priority of a sequence [T, B]
    loss: Tensor  # [T, B]


class Critic(ABC):
    """A critic that computes its target, error and gradient from the outputs of networks."""

    n_values: int  # number of outputs of the network
    gain: float  # of the initial weights of these outputs

    @abstractmethod
    def evaluate(self, values: Tensor, target_values: Tensor, experience: Experience) -> CriticOutput:
        """Return the output of the critic.

        Args:
            values: The outputs of the network [T+1, B, n_values].
            target_values: The outputs of the target network [T+1, B, n_values].
            experience: The rewards, actions, traces and policy of the batch.
        """

    @abstractmethod
    def compute_q(self, values: Tensor) -> Tensor:
        """Return Q(x, a) of every action [..., K], given the outputs of the network [..., n_values]."""


class ScalarCritic(Critic):
    """Q(x, a) of every action, whose target is the Retrace target (Munos et al. 2016)."""

    gain = 1.0

    def __init__(self, n_actions: int):
        self.n_values = n_actions

    def evaluate(self, values: Tensor, target_values: Tensor, experience: Experience) -> CriticOutput:
        taken, q = experience.taken.unsqueeze(-1), values[:-1]
        target = retrace(
            experience.reward,
            experience.discount,
            experience.valid,
            target_values[:-1].gather(-1, taken).squeeze(-1),
            experience.policy.expectation(target_values),
            experience.trace,
        )
        q_taken = q.gather(-1, taken).squeeze(-1)
        error = target - q_taken
        return CriticOutput(
            q=q,
            retrace_target=target,
            ascent_direction=torch.zeros_like(q).scatter_(-1, taken, error.unsqueeze(-1)),
            error=error,
            loss=squared_error(target, q_taken),
        )

    def compute_q(self, values: Tensor) -> Tensor:
        return values


class CategoricalCritic(Critic):
    """The distribution of the return of every action on the atoms z, whose target is that of distributional Retrace.

    With dueling logits (section 4): q_i(x, a) = softmax_i(V_i(x) + A_i(x, a)). The columns of the output are V, then A
    of each action.
    """

    gain = 0.01  # the initial distributions are close to uniform

    def __init__(self, n_actions: int, support: Support, estimator: str):
        self.n_actions, self.support, self.estimate = n_actions, support, DISTRIBUTIONAL_ESTIMATORS[estimator]
        self.n_values = support.n_atoms * (1 + n_actions)

    def evaluate(self, values: Tensor, target_values: Tensor, experience: Experience) -> CriticOutput:
        log_q = self._compute_logits(values[:-1]).log_softmax(-1)
        target_q = self._compute_logits(target_values).softmax(-1)
        target = self.estimate(
            DistributionalInputs(
                reward=experience.reward,
                discount=experience.discount,
                valid=experience.valid,
                trace=experience.trace,
                taken=experience.taken,
                probs=experience.policy.probs,
                q=target_q,
            ),
            self.support,
        )
        atoms, q = self.support.make_atoms(target), log_q.exp()
        index = experience.taken[..., None, None].expand(*experience.taken.shape, 1, self.support.n_atoms)
        # The gradient of -sum_i target_i log q_i(x_t, a_t) with respect to the logits is q - target, since the target's
        # entries sum to 1, also if some are negative.
        direction = target - q.gather(-2, index).squeeze(-2)
        return CriticOutput(
            q=q @ atoms,
            retrace_target=target @ atoms,
            ascent_direction=self._expand_direction(direction, index),
            error=0.5 * direction.abs().sum(-1),  # the total variation (section 3.3)
            loss=cross_entropy(target, log_q.gather(-2, index).squeeze(-2)),
        )

    def compute_q(self, values: Tensor) -> Tensor:
        return self._compute_logits(values).softmax(-1) @ self.support.make_atoms(values)

    def _compute_logits(self, values: Tensor) -> Tensor:
        """Return the logits [..., K, N] of every action."""
        state, actions = values.split([self.support.n_atoms, self.n_values - self.support.n_atoms], -1)
        return state.unsqueeze(-2) + actions.unflatten(-1, (self.n_actions, self.support.n_atoms))

    def _expand_direction(self, direction: Tensor, index: Tensor) -> Tensor:
        """Return the direction [..., n_values] of the outputs, given that of the logits of taken actions [..., N]."""
        actions = direction.new_zeros((*direction.shape[:-1], self.n_actions, self.support.n_atoms))
        actions.scatter_(-2, index, direction.unsqueeze(-2))
        return torch.cat((direction, actions.flatten(-2)), -1)


def make_critic(settings: ReactorSettings, n_actions: int) -> Critic:
    """Return the critic of the settings for a number of actions, or of combinations of actions."""
    if settings.critic == "scalar":
        return ScalarCritic(n_actions)
    return CategoricalCritic(n_actions, make_support(settings), settings.distributional)
