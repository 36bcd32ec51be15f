"""The projection of a distribution of returns onto evenly spaced atoms."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
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
