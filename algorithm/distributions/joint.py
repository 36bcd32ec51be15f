"""Policies over several kinds of action: independent distributions, or continuous dimensions that depend on branches.

A joint policy concatenates the columns of its parts. A hybrid policy is pi(d|x) pi(c|x, d), with discrete branches d
and continuous dimensions c; K is the number of combinations of the branches, 1 without branches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import accumulate, repeat

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from algorithm.distributions.categorical import (
    Categorical,
    CategoricalFamily,
    check_combinations,
    find_combination,
    one_hot_combinations,
    split_columns,
)
from algorithm.distributions.distribution import (
    ClosedFormDistribution,
    Distribution,
    DistributionFamily,
    ExportedAction,
    Selection,
)
from algorithm.distributions.gaussian import Gaussian, GaussianFamily, TanhGaussianFamily


class JointDistribution(ClosedFormDistribution):
    """The product of independent distributions, whose samples have `sizes` columns."""

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

    def from_action(self, action: np.ndarray) -> np.ndarray:
        return self._map_families(action, self.sample_sizes, lambda family, piece: family.from_action(piece))

    def with_noise(self, statistics: np.ndarray, level: np.ndarray) -> np.ndarray:
        return self._map_families(
            statistics, self.statistics_sizes, lambda family, piece: family.with_noise(piece, level)
        )

    def concentrate(self, statistics: Float[Tensor, "*B S"], sample: Float[Tensor, "*B size"]) -> Float[Tensor, "*B S"]:
        pieces = statistics.split(self.statistics_sizes, -1), sample.split(self.sample_sizes, -1)
        return torch.cat([family.concentrate(*pair) for family, *pair in zip(self.families, *pieces, strict=True)], -1)

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


class HybridDistribution(Distribution):
    """Independent branches, and for each combination of them a Gaussian with tanh over the continuous dimensions.

    The statistics are K * n_continuous means, as many logarithms of std, then the logits of each branch.
    """

    def __init__(self, statistics: Float[Tensor, "*B S"], n_continuous: int, branches: Sequence[int]):
        self.statistics, self.n_continuous, self.branches = statistics, n_continuous, tuple(branches)
        self.n_combinations = math.prod(branches)
        n_means, shape = self.n_combinations * n_continuous, (self.n_combinations, n_continuous)
        mean, log_std, self._logits = statistics.split([n_means, n_means, sum(branches)], -1)
        # Mean and logarithm of the standard deviation of the sample u [..., K, c], for every combination.
        self.mean, self.log_std = mean.unflatten(-1, shape), log_std.unflatten(-1, shape)

    @cached_property
    def branch_distributions(self) -> list[Categorical]:
        """The distribution of each branch."""
        return [Categorical(logits) for logits in self._logits.split(self.branches, -1)] if self.branches else []

    @cached_property
    def log_probs(self) -> Tensor:
        """The log-probabilities log pi(d) of all combinations [..., K]."""
        total = self.statistics.new_zeros((*self.statistics.shape[:-1], 1))
        for branch in self.branch_distributions:
            total = (total.unsqueeze(-1) + branch.log_probs.unsqueeze(-2)).flatten(-2)
        return total

    @cached_property
    def probs(self) -> Tensor:
        """The probabilities pi(d) of all combinations [..., K]."""
        return self.log_probs.exp()

    def log_prob(self, sample: Float[Tensor, "*B size"]) -> Float[Tensor, "*B"]:
        log_branches, log_values = self._log_probs(sample)
        return log_branches + log_values if self.n_continuous else log_branches

    def action_log_probs(self, sample: Float[Tensor, "*B size"]) -> tuple[Float[Tensor, "*B"], Float[Tensor, "*B"]]:
        """Return log pi(d) and log pi(c|d) of the executed action of a sample: c = tanh(u) (Eq. 21 of SAC)."""
        log_branches, log_values = self._log_probs(sample)
        u = sample[..., : self.n_continuous]
        squashing = 2 * (math.log(2) - u - torch.nn.functional.softplus(-2 * u))
        return log_branches, log_values - squashing.sum(-1)

    def _log_probs(self, sample: Float[Tensor, "*B size"]) -> tuple[Tensor, Tensor]:
        """Return log pi(d) and log N(u|d) [...] of a sample."""
        taken = find_combination(sample[..., self.n_continuous :], self.branches)
        columns = taken.unsqueeze(-1).expand(*taken.shape, self.n_continuous)
        mean_and_log_std = [part.gather(-2, columns).squeeze(-2) for part in (self.mean, self.log_std)]
        log_values = Gaussian(torch.cat(mean_and_log_std, -1)).log_prob(sample[..., : self.n_continuous])
        return self.log_probs.gather(-1, taken).squeeze(-1), log_values

    def rsample(self) -> ReparameterizedSample:
        """Sample the continuous dimensions of every combination: u = m + s eps, c = tanh(u)."""
        log_std = self.log_std
        noise = torch.empty_like(log_std).normal_()
        mean_offset = log_std.exp() * noise
        raw_action = self.mean + mean_offset
        # log(1 - c^2) = 2 (log 2 - u - log(1 + exp(-2 u))); the constant 2 log 2 is subtracted below.
        squashing = raw_action + torch.nn.functional.softplus(-2 * raw_action)
        negative_log_prob = torch.addcmul(log_std, noise, noise, value=0.5).sub(squashing, alpha=2).sum(-1)
        constant = -self.n_continuous * (0.5 * math.log(2 * math.pi) + 2 * math.log(2))
        return ReparameterizedSample(raw_action.tanh(), constant - negative_log_prob, mean_offset)

    def soft_policy_gradient(
        self,
        reparameterized: ReparameterizedSample,
        value: Float[Tensor, "*B K"],
        action_gradient: Float[Tensor, "*B K c"] | None,
        alpha: Float[Tensor, ""] | float,
    ) -> Float[Tensor, "*B S"]:
        """Return the gradient of V = sum_d pi(d) value_d with respect to the statistics.

        Args:
            reparameterized: The sample c_d of every combination.
            value: value_d = Q(x, d, c_d) - alpha_d log pi(d) - alpha_c log pi(c_d|d), all as computed for the sample.
            action_gradient: dQ / dc_d [..., K, c]; None without continuous dimensions.
            alpha: alpha_c, the temperature of the continuous dimensions.
        """
        parts = []
        if action_gradient is not None:
            probs = self.probs.unsqueeze(-1)
            c = reparameterized.actions
            # d log pi(c|d) / du = 2 c by the tanh; the density of the Gaussian is constant along u = m + s eps.
            # So d value / du = dQ/dc (1 - c^2) - 2 alpha c.
            raw_action_gradient = probs * (action_gradient - c * (action_gradient * c + 2 * alpha))
            parts += [
                raw_action_gradient.flatten(-2),
                torch.addcmul(probs * alpha, raw_action_gradient, reparameterized.mean_offset).flatten(-2),
            ]
        if self.branch_distributions:
            weight = self.probs * value
            weight_by_branch = weight.unflatten(-1, self.branches)
            total = weight.sum(-1, keepdim=True)
            for dim, branch in enumerate(self.branch_distributions, start=-len(self.branch_distributions)):
                other_dims = [other for other in range(-len(self.branch_distributions), 0) if other != dim]
                parts.append(
                    (weight_by_branch.sum(other_dims) if other_dims else weight_by_branch) - total * branch.probs
                )
        return torch.cat(parts, -1)


@dataclass(frozen=True)
class ReparameterizedSample:
    """A sample of the continuous dimensions for every combination of branches."""

    actions: Tensor  # c = tanh(u) [..., K, c]
    log_prob: Tensor  # log pi(c|d) [..., K]: log N(u) - sum log(1 - c^2) (Haarnoja et al. 2018, Eq. 21), always finite
    mean_offset: Tensor  # u - m [..., K, c]

    def select_rows(self, where: slice) -> ReparameterizedSample:
        """Return the part at some rows of the leading axis."""
        return ReparameterizedSample(self.actions[where], self.log_prob[where], self.mean_offset[where])


class HybridFamily(DistributionFamily[HybridDistribution]):
    """The policies over discrete branches and continuous dimensions that depend on them; one of the two may be missing.

    Raises:
        ValueError: The action has neither, or its branches have more than `MAX_COMBINATIONS` combinations.
    """

    def __init__(self, n_continuous: int, branches: Sequence[int]):
        n_combinations = check_combinations(branches)
        # Independent dimensions, with the same columns of samples.
        self.joint_family = make_family(n_continuous, branches, TanhGaussianFamily, Gaussian)
        self.branch_family = make_family(0, branches, TanhGaussianFamily, Gaussian) if branches else None
        self.continuous_family = TanhGaussianFamily(n_continuous, Gaussian) if n_continuous else None
        self.n_continuous, self.branches, self.n_combinations = n_continuous, tuple(branches), n_combinations
        joint = self.joint_family
        self.size, self.dimensions, self.encoded_size = joint.size, joint.dimensions, joint.encoded_size
        self.n_means = n_combinations * n_continuous
        self.statistics_size = 2 * self.n_means + sum(branches)
        self._combination_codes = one_hot_combinations(self.branches)

    def __call__(self, statistics: Float[Tensor, "*B S"]) -> HybridDistribution:
        return HybridDistribution(statistics, self.n_continuous, self.branches)

    def encode(self, sample: Float[Tensor, "*B size"]) -> Float[Tensor, "*B encoded"]:
        return self.joint_family.encode(sample)

    def encode_per_combination(self, actions: Float[Tensor, "*B K c"]) -> Float[Tensor, "*B K encoded"]:
        """Return the input of a critic for every combination, given its executed continuous dimensions."""
        if not self.branch_family:
            return actions
        self._combination_codes = self._combination_codes.to(actions)  # moves to the device once
        return torch.cat((actions, self._combination_codes.expand(*actions.shape[:-1], -1)), -1)

    def find_combination(self, sample: Float[Tensor, "*B size"]) -> Tensor:
        """Return the index of the combination of each sample [..., 1]."""
        return find_combination(sample[..., self.n_continuous :], self.branches)

    def sample(self, statistics: np.ndarray, rng: np.random.Generator, noise: np.ndarray | None = None) -> np.ndarray:
        logits = statistics[:, 2 * self.n_means :]
        indices = self.branch_family.sample(logits, rng) if self.branch_family else logits
        return self._add_continuous(statistics, indices, lambda family, rows: family.sample(rows, rng, noise))

    def sample_uniformly(self, statistics: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw allowed actions from a uniform distribution; executed continuous dimensions are uniform in [-1, 1].

        Args:
            statistics: Statistics [n, S], whose logits define the allowed actions.
            rng: The generator.

        Returns:
            Samples [n, size], and statistics [n, S] with the logits of the uniform distribution. Their means and stds
            are those of `statistics`, since none describe uniform continuous dimensions.
        """
        n_rows, parts = len(statistics), []
        logits = statistics[:, 2 * self.n_means :]
        if self.continuous_family:
            limit = np.nextafter(1.0, 0.0)  # the inverse of tanh is finite up to it
            parts.append(np.arctanh(rng.uniform(-limit, limit, (n_rows, self.n_continuous))))
        if self.branch_family:
            logits = self.branch_family.with_noise(logits, np.ones(n_rows, np.float32))
            parts.append(self.branch_family.sample(logits, rng))
        uniform_statistics = np.concatenate((statistics[:, : 2 * self.n_means], logits), -1)
        return np.concatenate(parts, -1, dtype=np.float32), uniform_statistics

    def mode(self, statistics: np.ndarray) -> np.ndarray:
        logits = statistics[:, 2 * self.n_means :]
        indices = self.branch_family.mode(logits) if self.branch_family else logits
        return self._add_continuous(statistics, indices, lambda family, rows: family.mode(rows))

    def to_action(self, sample: np.ndarray) -> np.ndarray:
        return self.joint_family.to_action(sample)

    def from_action(self, action: np.ndarray) -> np.ndarray:
        return self.joint_family.from_action(action)

    def with_noise(self, statistics: np.ndarray, level: np.ndarray) -> np.ndarray:
        parts = [statistics[:, : 2 * self.n_means], statistics[:, 2 * self.n_means :]]
        if self.continuous_family:
            parts[0] = self.continuous_family.with_noise(parts[0], level)
        if self.branch_family:
            parts[1] = self.branch_family.with_noise(parts[1], level)
        return np.concatenate(parts, -1)

    def concentrate(self, statistics: Float[Tensor, "*B S"], sample: Float[Tensor, "*B size"]) -> Float[Tensor, "*B S"]:
        means, log_stds, logits = statistics.split([self.n_means, self.n_means, sum(self.branches)], -1)
        continuous, indices = sample.split([self.n_continuous, len(self.branches)], -1)
        if self.branch_family:
            logits = self.branch_family.concentrate(logits, indices)
        repeats = [1] * (sample.dim() - 1) + [self.n_combinations]
        return torch.cat((continuous.repeat(repeats), log_stds, logits), -1)

    def with_repetition(self, statistics: np.ndarray, sample: np.ndarray, level: np.ndarray) -> np.ndarray:
        return self.joint_family.with_repetition(statistics, sample, level)

    def export_action(self, statistics: Tensor, mask: Tensor, selection: Selection) -> ExportedAction:
        indices: tuple[Tensor, ...] = ()
        if self.branch_family:
            indices = self.branch_family.export_action(statistics[:, 2 * self.n_means :], mask, selection).indices
        if not self.continuous_family:
            return ExportedAction((), indices)
        weights = torch.ones_like(statistics[:, :1])  # of the combinations: a weighted sum, which all importers support
        for index, count in zip(indices, self.branches, strict=True):
            one_hot = torch.nn.functional.one_hot(index[:, 0], count).to(statistics.dtype)
            weights = (weights.unsqueeze(-1) * one_hot.unsqueeze(-2)).flatten(1)
        by_combination = statistics[:, : 2 * self.n_means].reshape(-1, 2, self.n_combinations, self.n_continuous)
        selected = (by_combination * weights.reshape(-1, 1, self.n_combinations, 1)).sum(2).flatten(1)
        return ExportedAction(self.continuous_family.export_action(selected, mask, selection).continuous, indices)

    def _add_continuous(
        self,
        statistics: np.ndarray,
        indices: np.ndarray,
        select: Callable[[TanhGaussianFamily, np.ndarray], np.ndarray],
    ) -> np.ndarray:
        """Return samples [n, size], given the indices of their branches.

        `select` returns the continuous dimensions, given means and logarithms of std [n, 2 c] of each combination.
        """
        if not self.continuous_family:
            return indices
        n_rows = len(statistics)
        combination = np.zeros(n_rows, np.int64)
        if self.branches:
            combination = np.ravel_multi_index(tuple(indices.T.astype(np.int64)), self.branches)
        by_combination = statistics[:, : 2 * self.n_means].reshape(n_rows, 2, self.n_combinations, self.n_continuous)
        selected = by_combination[np.arange(n_rows), :, combination].reshape(n_rows, -1)
        return np.concatenate((select(self.continuous_family, selected), indices), -1)
