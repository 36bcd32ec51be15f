"""Policies over several kinds of action: independent distributions, whose columns are concatenated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from itertools import accumulate, repeat

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from algorithm.distributions.categorical import CategoricalFamily, split_columns
from algorithm.distributions.distribution import (
    ClosedFormDistribution,
    DistributionFamily,
    ExportedAction,
    Selection,
)
from algorithm.distributions.gaussian import Gaussian, GaussianFamily


class JointDistribution(ClosedFormDistribution):
    """The product of independent distributions.

    Args:
        statistics: Statistics of all parts, concatenated.
        parts: The distributions.
        sizes: Number of columns of each part's sample.
    """

    def __init__(
        self, statistics: Float[Tensor, "*B S"], parts: Sequence[ClosedFormDistribution], sizes: Sequence[int]
    ):
        self.statistics, self.parts, self.sample_sizes = statistics, parts, list(sizes)

    def log_prob(self, sample: Float[Tensor, "*B size"]) -> Float[Tensor, "*B"]:
        return _sum_terms(part.log_prob(piece) for part, piece in self._split_sample(sample))

    @property
    def entropy(self) -> Float[Tensor, "*B"]:
        return _sum_terms(part.entropy for part in self.parts)

    def entropy_gradient(self) -> Float[Tensor, "*B S"]:
        return torch.cat([part.entropy_gradient() for part in self.parts], -1)

    def kl(self, average: JointDistribution) -> Float[Tensor, "*B"]:
        return _sum_terms(part.kl(other) for part, other in zip(self.parts, average.parts, strict=True))

    def kl_gradient(self, average: JointDistribution) -> Float[Tensor, "*B S"]:
        pairs = zip(self.parts, average.parts, strict=True)
        return torch.cat([part.kl_gradient(other) for part, other in pairs], -1)

    def fisher_product(self, vector: Float[Tensor, "*B S"]) -> Float[Tensor, "*B S"]:
        pieces = vector.split([part.statistics.shape[-1] for part in self.parts], -1)
        return torch.cat([part.fisher_product(piece) for part, piece in zip(self.parts, pieces, strict=True)], -1)

    def score(self, sample: Float[Tensor, "*B size"], weight: Float[Tensor, "*B"]) -> Float[Tensor, "*B S"]:
        return torch.cat([part.score(piece, weight) for part, piece in self._split_sample(sample)], -1)

    def draw_samples(self, count: int) -> Float[Tensor, "count *B size"]:
        return torch.cat([part.draw_samples(count) for part in self.parts], -1)

    def _split_sample(self, sample: Tensor) -> Iterable[tuple[ClosedFormDistribution, Tensor]]:
        return zip(self.parts, sample.split(self.sample_sizes, -1), strict=True)


def _sum_terms(terms: Iterable[Tensor]) -> Tensor:
    return reduce(torch.add, terms)


class JointFamily(DistributionFamily[JointDistribution]):
    """The joint policies of independent families, in their order.

    Raises:
        ValueError: There are no families.
    """

    def __init__(self, families: Sequence[DistributionFamily[ClosedFormDistribution]]):
        if not families:
            raise ValueError("a policy needs at least one kind of action")
        self.families = list(families)
        self.statistics_sizes = [family.statistics_size for family in families]
        self.sample_sizes = [family.size for family in families]
        self.size, self.statistics_size = sum(self.sample_sizes), sum(self.statistics_sizes)
        self.dimensions = sum(family.dimensions for family in families)
        self.encoded_size = sum(family.encoded_size for family in families)
        self.branches = tuple(actions for family in families for actions in family.branches)

    def __call__(self, statistics: Float[Tensor, "*B S"]) -> JointDistribution:
        pieces = zip(self.families, statistics.split(self.statistics_sizes, -1), strict=True)
        return JointDistribution(statistics, [family(piece) for family, piece in pieces], self.sample_sizes)

    def encode(self, sample: Float[Tensor, "*B size"]) -> Float[Tensor, "*B encoded"]:
        pieces = zip(self.families, sample.split(self.sample_sizes, -1), strict=True)
        return torch.cat([family.encode(piece) for family, piece in pieces], -1)

    def sample(self, statistics: np.ndarray, rng: np.random.Generator, noise: np.ndarray | None = None) -> np.ndarray:
        if noise is None:
            noises: Iterator[np.ndarray | None] = repeat(None)
        else:
            widths = [family.size - len(family.branches) for family in self.families]  # continuous dimensions
            noises = iter(np.split(noise, list(accumulate(widths[:-1])), -1))
        return self._map_families(
            statistics, self.statistics_sizes, lambda family, piece: family.sample(piece, rng, next(noises))
        )

    def mode(self, statistics: np.ndarray) -> np.ndarray:
        return self._map_families(statistics, self.statistics_sizes, lambda family, piece: family.mode(piece))

    def to_action(self, sample: np.ndarray) -> np.ndarray:
        return self._map_families(sample, self.sample_sizes, lambda family, piece: family.to_action(piece))

    def with_noise(self, statistics: np.ndarray, level: np.ndarray) -> np.ndarray:
        return self._map_families(
            statistics, self.statistics_sizes, lambda family, piece: family.with_noise(piece, level)
        )

    def with_repetition(self, statistics: np.ndarray, sample: np.ndarray, level: np.ndarray) -> np.ndarray:
        actions = iter(np.split(sample, list(accumulate(self.sample_sizes[:-1])), -1))
        return self._map_families(
            statistics, self.statistics_sizes, lambda family, piece: family.with_repetition(piece, next(actions), level)
        )

    def export_action(self, statistics: Tensor, mask: Tensor, selection: Selection) -> ExportedAction:
        pieces = split_columns(statistics, self.statistics_sizes)
        masks = split_columns(mask, [sum(family.branches) for family in self.families])
        parts = zip(self.families, pieces, masks, strict=True)
        actions = [family.export_action(piece, allowed, selection) for family, piece, allowed in parts]
        return ExportedAction(
            tuple(part for action in actions for part in action.continuous),
            tuple(part for action in actions for part in action.indices),
        )

    def _map_families(
        self, array: np.ndarray, widths: Sequence[int], function: Callable[[DistributionFamily, np.ndarray], np.ndarray]
    ) -> np.ndarray:
        """Apply `function` to each family and its columns of `array`, and concatenate the results."""
        pieces = np.split(array, list(accumulate(widths[:-1])), -1)
        return np.concatenate([function(*pair) for pair in zip(self.families, pieces, strict=True)], -1)


def make_family(
    continuous: int, branches: Sequence[int], bounded: type[GaussianFamily], distribution: type[Gaussian]
) -> DistributionFamily[ClosedFormDistribution]:
    """Return the family of an action with independent dimensions.

    Args:
        continuous: Number of continuous dimensions.
        branches: Number of actions of each discrete branch.
        bounded: The family of continuous dimensions; without effect if there are none.
        distribution: The distribution of continuous dimensions; without effect if there are none.

    Raises:
        ValueError: The action has neither continuous dimensions nor branches.
    """
    families: list[DistributionFamily[ClosedFormDistribution]] = (
        [bounded(continuous, distribution)] if continuous else []
    )
    families += [CategoricalFamily(actions) for actions in branches]
    return families[0] if len(families) == 1 else JointFamily(families)
