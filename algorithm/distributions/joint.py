"""Several kinds of action at once: independent parts, whose numbers stand side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from itertools import accumulate, pairwise

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from algorithm.distributions.categorical import Branch
from algorithm.distributions.distribution import ClosedForm, Executed, Family
from algorithm.distributions.gaussian import Continuous, Gaussian


class Joint(ClosedForm):
    """The product of independent parts; `sizes` are the numbers of each part's sample, in their order."""

    def __init__(self, statistics: Float[Tensor, "*B S"], parts: Sequence[ClosedForm], sizes: Sequence[int]):
        self.statistics, self.parts, self.sizes = statistics, parts, list(sizes)

    def rows(self, where: slice) -> Joint:
        return Joint(self.statistics[where], [part.rows(where) for part in self.parts], self.sizes)

    def log_prob(self, sample: Float[Tensor, "*B size"]) -> Float[Tensor, "*B"]:
        return _total(part.log_prob(piece) for part, piece in self._pieces(sample))

    @property
    def entropy(self) -> Float[Tensor, "*B"]:
        return _total(part.entropy for part in self.parts)

    def entropy_gradient(self) -> Float[Tensor, "*B S"]:
        return torch.cat([part.entropy_gradient() for part in self.parts], -1)

    def kl(self, average: Joint) -> Float[Tensor, "*B"]:
        return _total(part.kl(other) for part, other in zip(self.parts, average.parts, strict=True))

    def kl_gradient(self, average: Joint) -> Float[Tensor, "*B S"]:
        pairs = zip(self.parts, average.parts, strict=True)
        return torch.cat([part.kl_gradient(other) for part, other in pairs], -1)

    def score(self, sample: Float[Tensor, "*B size"], weight: Float[Tensor, "*B"]) -> Float[Tensor, "*B S"]:
        return torch.cat([part.score(piece, weight) for part, piece in self._pieces(sample)], -1)

    def draw(self, count: int) -> Float[Tensor, "count *B size"]:
        return torch.cat([part.draw(count) for part in self.parts], -1)

    def _pieces(self, sample: Tensor) -> Iterable[tuple[ClosedForm, Tensor]]:
        return zip(self.parts, sample.split(self.sizes, -1), strict=True)


def _total(terms: Iterable[Tensor]) -> Tensor:
    return reduce(torch.add, terms)


class Several(Family[Joint]):
    """All joint policies of independent `families`, in their order.

    Raises ValueError where there is no family.
    """

    def __init__(self, families: Sequence[Family[ClosedForm]]):
        if not families:
            raise ValueError("a policy needs at least one kind of action")
        self.families = list(families)
        self.widths = [family.statistics for family in families]
        self.sizes = [family.size for family in families]
        self.size, self.statistics = sum(self.sizes), sum(self.widths)
        self.dimensions = sum(family.dimensions for family in families)
        self.encoded = sum(family.encoded for family in families)
        self.branches = tuple(actions for family in families for actions in family.branches)

    def __call__(self, statistics: Float[Tensor, "*B S"]) -> Joint:
        pieces = zip(self.families, statistics.split(self.widths, -1), strict=True)
        return Joint(statistics, [family(piece) for family, piece in pieces], self.sizes)

    def encode(self, sample: Float[Tensor, "*B size"]) -> Float[Tensor, "*B encoded"]:
        pieces = zip(self.families, sample.split(self.sizes, -1), strict=True)
        return torch.cat([family.encode(piece) for family, piece in pieces], -1)

    def sample(self, statistics: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return self._each(statistics, self.widths, lambda family, piece: family.sample(piece, rng))

    def mode(self, statistics: np.ndarray) -> np.ndarray:
        return self._each(statistics, self.widths, lambda family, piece: family.mode(piece))

    def to_action(self, sample: np.ndarray) -> np.ndarray:
        return self._each(sample, self.sizes, lambda family, piece: family.to_action(piece))

    def noisy(self, statistics: np.ndarray, level: np.ndarray) -> np.ndarray:
        return self._each(statistics, self.widths, lambda family, piece: family.noisy(piece, level))

    def execute_draw(self, statistics: Tensor, allowed: Tensor) -> Executed:
        return self._execute(statistics, allowed, lambda family: family.execute_draw)

    def execute_mode(self, statistics: Tensor, allowed: Tensor) -> Executed:
        return self._execute(statistics, allowed, lambda family: family.execute_mode)

    def _execute(
        self, statistics: Tensor, allowed: Tensor, how: Callable[[Family], Callable[[Tensor, Tensor], Executed]]
    ) -> Executed:
        """What each family executes, side by side."""
        # Slices and no split, since a graph cannot leave out what a split makes and nobody reads.
        pieces, masks = _columns(self.widths), _columns(sum(family.branches) for family in self.families)
        executed = [
            how(family)(statistics[:, piece], allowed[:, mask])
            for family, piece, mask in zip(self.families, pieces, masks, strict=True)
        ]
        return Executed(
            tuple(part for one in executed for part in one.continuous),
            tuple(part for one in executed for part in one.indices),
        )

    def _each(
        self, array: np.ndarray, widths: Sequence[int], function: Callable[[Family, np.ndarray], np.ndarray]
    ) -> np.ndarray:
        """What `function` makes of each family's columns of `array`, side by side."""
        pieces = np.split(array, list(accumulate(widths[:-1])), -1)
        return np.concatenate([function(*pair) for pair in zip(self.families, pieces, strict=True)], -1)


def _columns(widths: Iterable[int]) -> list[slice]:
    """Where parts of these widths stand side by side."""
    ends = list(accumulate(widths, initial=0))
    return [slice(*ends) for ends in pairwise(ends)]


def family_of(
    continuous: int, branches: Sequence[int], bounded: type[Continuous], distribution: type[Gaussian]
) -> Family[ClosedForm]:
    """The family of an action of `continuous` numbers and discrete `branches`: means and deviations, then all logits.

    `bounded` is Clipped or Squashed, `distribution` is Gaussian or FixedGaussian; neither matters where nothing is
    continuous. Raises ValueError for an action of no numbers at all.
    """
    families: list[Family[ClosedForm]] = [bounded(continuous, distribution)] if continuous else []
    families += [Branch(actions) for actions in branches]
    return families[0] if len(families) == 1 else Several(families)
