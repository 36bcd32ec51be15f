"""Distributional Retrace (Gruslys et al. 2018, arXiv 1704.04651, section 3.2): targets of categorical critics.

A categorical critic predicts the distribution q(x, a) of the return on the atoms z of a Support. Its target at row t
is a weighted sum of n-step distributions for n = 1, 2, ... up to the end of the trace:

    sum_n sum_a alpha_{n,a} project(r_t + ... + gamma^{n-1} r_{t+n-1} + gamma^n z, q(x_{t+n}, a))
    alpha_{n,a} = c_{t+1} ... c_{t+n-1} (pi(a|x_{t+n}) - [a = a_{t+n}] c_{t+n}),   c_s = lambda min(1, rho_s)

The trace ends (c_{t+n} = 0) after the last row, and at a row t+n whose successor is missing. After a termination in
row t+n-1 the discount is 0: the terms of n and of all larger n have one position, the sum of the n rewards, and their
weights add up to c_{t+1} ... c_{t+n-1}. So rows after a termination have no effect.

The weights sum to 1, so the mean of the target is the scalar Retrace target, unless positions are clipped. Some weights
are negative, and so may be entries of the target. They need no special case: the gradient of the cross-entropy with
respect to the logits is softmax - target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Support:
    """The atoms z_i = v_min + i Dz of categorical distributions, with Dz = (v_max - v_min) / (n_atoms - 1).

    Attributes:
        v_min: The first atom.
        v_max: The last atom, above `v_min`.
        n_atoms: N, the number of atoms, at least 2.
    """

    v_min: float
    v_max: float
    n_atoms: int

    @cached_property
    def distance(self) -> float:
        """The distance Dz between adjacent atoms."""
        return (self.v_max - self.v_min) / (self.n_atoms - 1)

    def make_atoms(self, like: Tensor) -> Float[Tensor, " N"]:
        """Return the atoms with the dtype and on the device of a tensor."""
        return torch.linspace(self.v_min, self.v_max, self.n_atoms, dtype=like.dtype, device=like.device)

    def project(self, position: Float[Tensor, "*B M"], mass: Float[Tensor, "*B M"]) -> Float[Tensor, "*B N"]:
        """Return the mass of every atom after each position has distributed its mass over the two adjacent atoms.

            p_i = sum_j mass_j h_i(position_j),   h_i(y) = max(0, 1 - |clip(y, v_min, v_max) - z_i| / Dz)

        (Bellemare et al. 2017, arXiv 1707.06887, Eq. 7.) The total mass stays the same, and so does the mean
        unless positions are clipped. Mass may be negative.

        Args:
            position: Positions in the unit of the atoms.
            mass: The mass of each position.
        """
        steps = ((position - self.v_min) / self.distance).clamp(0, self.n_atoms - 1)  # position in units of Dz
        # A NaN is no valid index. It reaches the result through `upper_share`.
        lower = steps.nan_to_num().floor().clamp(max=self.n_atoms - 2)
        upper_share = mass * (steps - lower)
        index = lower.long()
        projected = mass.new_zeros((*mass.shape[:-1], self.n_atoms))
        return projected.scatter_add_(-1, index, mass - upper_share).scatter_add_(-1, index + 1, upper_share)


@dataclass(frozen=True, kw_only=True)
class RetraceInputs:
    """The inputs of Retrace besides the values or distributions of the target network, for A actions."""

    reward: Float[Tensor, "T B"]
    discount: Float[Tensor, "T B"]  # gamma * alive: 0 after a termination
    valid: Bool[Tensor, "T B"]  # False for rows whose successor is missing
    trace: Float[Tensor, "T B"]  # c of the taken actions
    taken: Int[Tensor, "T B"]  # the taken actions
    probs: Float[Tensor, "T+1 B A"]  # pi

    def select_taken(self, q: Float[Tensor, "_ B A N"]) -> Float[Tensor, "T B N"]:
        """Return the distributions of the taken actions, of `q` [T+1, B, A, N]."""
        index = self.taken[..., None, None].expand(-1, -1, 1, q.shape[-1])
        return q[:-1].gather(2, index).squeeze(2)

    def compute_next_traces(self) -> Float[Tensor, "T B"]:
        """Return c_{t+1} for every row t, 0 where the trace ends."""
        return torch.cat((self.trace[1:] * self.valid[1:], torch.zeros_like(self.trace[:1])))

    def mix_next_distributions(
        self, q: Float[Tensor, "_ B A N"], q_taken: Float[Tensor, "T B N"], next_trace: Float[Tensor, "T B"]
    ) -> Float[Tensor, "T B N"]:
        """Return sum_a (pi(a|x_{t+1}) - [a = a_{t+1}] c_{t+1}) q(x_{t+1}, a) for every row t."""
        expected = (self.probs[1:].unsqueeze(-2) @ q[1:]).squeeze(-2)
        expected[:-1] -= next_trace[:-1].unsqueeze(-1) * q_taken[1:]
        return expected


def distributional_retrace(
    inputs: RetraceInputs, q: Float[Tensor, "_ B A N"], support: Support
) -> Float[Tensor, "T B N"]:
    """Return the target of q(x_t, a_t) by the definition, which projects each n-step distribution once.

    The number of operations is quadratic in T.

    Args:
        inputs: Rewards, taken actions and policy.
        q: The distributions of the target network [T+1, B, A, N].
        support: Their atoms.

    Returns:
        Targets, each with the sum 1; q(x_t, a_t) at rows that are not valid.
    """
    q_taken, next_trace, atoms = inputs.select_taken(q), inputs.compute_next_traces(), support.make_atoms(q)
    mixture = inputs.mix_next_distributions(q, q_taken, next_trace)
    target = torch.zeros_like(mixture)
    rewards, discount = torch.zeros_like(inputs.reward), torch.ones_like(inputs.reward)
    weight = torch.ones_like(inputs.reward)  # c_{t+1} ... c_{t+n-1}
    for n in range(1, len(target) + 1):
        rows = len(target) + 1 - n  # number of rows with n successors
        rewards = torch.addcmul(rewards[:rows], discount[:rows], inputs.reward[n - 1 :])
        discount = discount[:rows] * inputs.discount[n - 1 :]
        position = torch.addcmul(rewards.unsqueeze(-1), discount.unsqueeze(-1), atoms)
        target[:rows] += support.project(position, weight[:rows].unsqueeze(-1) * mixture[n - 1 :])
        weight = weight[:rows] * next_trace[n - 1 :]
    return torch.where(inputs.valid.unsqueeze(-1), target, q_taken)


def recursive_distributional_retrace(
    inputs: RetraceInputs, q: Float[Tensor, "_ B A N"], support: Support
) -> Float[Tensor, "T B N"]:
    """Return a target of q(x_t, a_t) by a recursion, which projects again at every row.

        eta_t = project(r_t + d_t z, sum_a pi(a|x_{t+1}) q(x_{t+1}, a) + c_{t+1} (eta_{t+1} - q(x_{t+1}, a_{t+1})))

    d_t is the discount. The number of operations is linear in T. The target is another distribution than that of
    `distributional_retrace`: it has the same mean, unless positions are clipped, but each projection spreads its mass.
    The arguments are those of `distributional_retrace`.

    Returns:
        Targets, each with the sum 1; q(x_t, a_t) at rows that are not valid.
    """
    q_taken, next_trace, atoms = inputs.select_taken(q), inputs.compute_next_traces(), support.make_atoms(q)
    mixture = inputs.mix_next_distributions(q, q_taken, next_trace)
    position = torch.addcmul(inputs.reward.unsqueeze(-1), inputs.discount.unsqueeze(-1), atoms)
    targets, target = [], torch.zeros_like(mixture[0])
    for row in range(len(mixture) - 1, -1, -1):
        mass = torch.addcmul(mixture[row], next_trace[row].unsqueeze(-1), target)
        target = support.project(position[row], mass)
        targets.append(target)
    return torch.where(inputs.valid.unsqueeze(-1), torch.stack(targets[::-1]), q_taken)


DISTRIBUTIONAL_ESTIMATORS: Mapping[str, Callable[[RetraceInputs, Tensor, Support], Tensor]] = {
    "direct": distributional_retrace,
    "recursive": recursive_distributional_retrace,
}
