"""Distributional Retrace (Gruslys et al. 2018, arXiv 1704.04651, section 3.2): targets of categorical critics.

A critic has the distribution q(x, a) of returns on the atoms of a Support. Its target at row t is a mixture of the
n-step distributions of all n >= 1, weighted by

    alpha_{n,a} = c_{t+1} ... c_{t+n-1} (pi(a|x_{t+n}) - [a = a_{t+n}] c_{t+n}),   c_s = lambda min(1, rho_s)

so that its mean is the scalar Retrace target, as long as no atom is clipped. The weights sum to 1, but some are
negative, and so may be entries of the target: its cross-entropy still has the gradient softmax - target with respect to
logits. A trace ends (c_s = 0) at the last row and at rows whose successor is missing. After a termination the discount
is 0: all further terms are at the same return, where their weights add up to the weight of that termination.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from algorithm.returns.projection import Support


@dataclass(frozen=True, kw_only=True)
class DistributionalInputs:
    """The inputs of distributional Retrace, for T rows of B columns and A actions."""

    reward: Float[Tensor, "T B"]
    discount: Float[Tensor, "T B"]  # gamma * alive
    valid: Bool[Tensor, "T B"]  # whether the successor of a row is known
    trace: Float[Tensor, "T B"]  # c
    taken: Int[Tensor, "T B"]  # the taken actions
    probs: Float[Tensor, "T+1 B A"]  # pi
    q: Float[Tensor, "T+1 B A N"]  # the distributions of the target network

    def select_taken(self, rows: slice) -> Float[Tensor, "T B N"]:
        """Return the distributions of the taken actions at some of the first T rows."""
        index = self.taken[rows, :, None, None].expand(-1, -1, 1, self.q.shape[-1])
        return self.q[:-1][rows].gather(2, index).squeeze(2)

    def compute_next_traces(self) -> Float[Tensor, "T B"]:
        """Return c_{t+1} of every row, 0 if the trace ends there."""
        return torch.cat((self.trace[1:] * self.valid[1:], torch.zeros_like(self.trace[:1])))

    def mix_next_distributions(self, next_trace: Tensor) -> Float[Tensor, "T B N"]:
        """Return sum_a (pi(a|x_{t+1}) - [a = a_{t+1}] c_{t+1}) q(x_{t+1}, a) of every row."""
        expected = (self.probs[1:].unsqueeze(-2) @ self.q[1:]).squeeze(-2)
        expected[:-1] -= next_trace[:-1].unsqueeze(-1) * self.select_taken(slice(1, None))
        return expected


def distributional_retrace(inputs: DistributionalInputs, support: Support) -> Float[Tensor, "T B N"]:
    """Return the target of q(x_t, a_t), for which each n-step distribution is projected once.

    The number of operations is quadratic in T. At rows that are not valid the target is q(x_t, a_t).
    """
    next_trace = inputs.compute_next_traces()
    mixture, atoms = inputs.mix_next_distributions(next_trace), support.make_atoms(inputs.q)
    target = torch.zeros_like(mixture)
    rewards, discount = torch.zeros_like(inputs.reward), torch.ones_like(inputs.reward)
    weight = torch.ones_like(inputs.reward)  # c_{t+1} ... c_{t+n-1}
    for n in range(1, len(target) + 1):
        rows = len(target) + 1 - n  # that have n successors
        rewards = torch.addcmul(rewards[:rows], discount[:rows], inputs.reward[n - 1 :])
        discount = discount[:rows] * inputs.discount[n - 1 :]
        position = torch.addcmul(rewards.unsqueeze(-1), discount.unsqueeze(-1), atoms)
        target[:rows] += support.project(position, weight[:rows].unsqueeze(-1) * mixture[n - 1 :])
        weight = weight[:rows] * next_trace[n - 1 :]
    return torch.where(inputs.valid.unsqueeze(-1), target, inputs.select_taken(slice(None)))


def recursive_distributional_retrace(inputs: DistributionalInputs, support: Support) -> Float[Tensor, "T B N"]:
    """Return a target with the same mean as `distributional_retrace`, in a number of operations that is linear in T.

        eta_t = project(r_t + d_t z, sum_a pi(a) q(x_{t+1}, a) - c_{t+1} q(x_{t+1}, a_{t+1}) + c_{t+1} eta_{t+1})

    It is not the same distribution: every row projects the result of the next row again, which spreads its mass.
    """
    next_trace = inputs.compute_next_traces()
    mixture, atoms = inputs.mix_next_distributions(next_trace), support.make_atoms(inputs.q)
    position = torch.addcmul(inputs.reward.unsqueeze(-1), inputs.discount.unsqueeze(-1), atoms)
    targets, target = [], torch.zeros_like(mixture[0])
    for row in range(len(mixture) - 1, -1, -1):
        mass = torch.addcmul(mixture[row], next_trace[row].unsqueeze(-1), target)
        target = support.project(position[row], mass)
        targets.append(target)
    return torch.where(inputs.valid.unsqueeze(-1), torch.stack(targets[::-1]), inputs.select_taken(slice(None)))


DISTRIBUTIONAL_ESTIMATORS: Mapping[str, Callable[[DistributionalInputs, Support], Tensor]] = {
    "direct": distributional_retrace,
    "recursive": recursive_distributional_retrace,
}
