"""Policies over one discrete branch, or over the combinations of several as one categorical distribution.

Unlike independent branches, a policy over combinations can represent every distribution over them. The K combinations
are in the order of nested loops over the branches, of which the last is the innermost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate, pairwise, product

import numpy as np
import torch
from jaxtyping import Float, Real
from torch import Tensor

from algorithm.distributions.distribution import (
    MASKED_LOGIT,
    OTHER_ACTION,
    ClosedFormDistribution,
    DistributionFamily,
    ExportedAction,
    Selection,
)

MAX_COMBINATIONS = 512  # of discrete branches, if each combination has a value


def check_combinations(branches: Sequence[int]) -> int:
    """Return the number of combinations of discrete branches.

    Raises:
        ValueError: There are more than `MAX_COMBINATIONS`.
    """
    n_combinations = math.prod(branches)
    if n_combinations > MAX_COMBINATIONS:
        raise ValueError(
            f"there are {n_combinations} combinations of discrete branches {list(branches)}; each has a value, "
            f"and at most {MAX_COMBINATIONS} are supported"
        )
    return n_combinations


def find_combination(indices: Real[Tensor, "*B branches"], branches: Sequence[int]) -> Tensor:
    """Return the index of the combination [..., 1] that consists of these indices of each branch."""
    combination = indices.new_zeros(indices.shape[:-1], dtype=torch.int64)
    for n_actions, branch in zip(branches, indices.long().unbind(-1), strict=True):
        combination = combination * n_actions + branch
    return combination.unsqueeze(-1)


def split_columns(columns: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Return the columns [..., size] of each part, such as a branch."""
    # Slices instead of a split, whose unused outputs would stay in an exported graph.
    return [columns[..., begin:end] for begin, end in pairwise(accumulate(sizes, initial=0))]


def list_combinations(branches: Sequence[int]) -> np.ndarray:
    """Return the indices of every branch [K, branches] for each combination."""
    return np.array(list(product(*map(range, branches))), np.float32).reshape(math.prod(branches), len(branches))


def one_hot_combinations(branches: Sequence[int]) -> Float[Tensor, "K sum_of_branches"]:
    """Return the concatenated one-hot indices of each branch, for every combination."""
    indices = torch.tensor(list_combinations(branches)).long()
    parts = [torch.eye(n)[index] for index, n in zip(indices.unbind(-1), branches, strict=True)]
    return torch.cat([torch.zeros(len(indices), 0), *parts], -1)


def find_allowed_combinations(mask: Tensor, branches: Sequence[int], codes: Tensor) -> Tensor:
    """Return 1 for each allowed combination, otherwise 0, [..., K]; a branch without an allowed action is not masked.

    Args:
        mask: Above 0 for allowed actions [..., sum of branches].
        branches: Number of actions of each branch.
        codes: The result of `one_hot_combinations`.
    """
    parts = split_columns(mask.clamp(0, 1).float(), branches)
    is_forbidden = [(1 - part) * part.sum(-1, keepdim=True).clamp(max=1) for part in parts]
    return (1 - torch.cat(is_forbidden, -1) @ codes.T).clamp(min=0)


class Categorical(ClosedFormDistribution):
    """pi(a) = softmax(logits)(a) over the A actions of one discrete branch.

    The statistics are the logits [..., A]. A sample is one index [..., 1] of any dtype.
    """

    # With smaller probabilities the squares of gradients with respect to them would overflow float32.
    MIN_PROB = 1e-8

    def __init__(self, statistics: Float[Tensor, "*B A"]):
        self.statistics = statistics

    @cached_property
    def log_probs(self) -> Tensor:
        """The log-probabilities log pi(a) of all actions [..., A]."""
        # A softmax over the first axis works on whole rows; over a short last axis it takes ten times as long.
        return self.statistics.movedim(-1, 0).log_softmax(0).movedim(0, -1)

    @cached_property
    def probs(self) -> Tensor:
        """The probabilities pi(a) of all actions [..., A]."""
        return self.log_probs.exp()

    def find_index(self, sample: Real[Tensor, "*B size"]) -> Tensor:
        """Return the index of the action of each sample [..., 1] int64."""
        return sample.long()

    def log_prob(self, sample: Real[Tensor, "*B size"]) -> Float[Tensor, "*B"]:
        return self.log_probs.gather(-1, self.find_index(sample)).squeeze(-1)

    def log_ratio(self, behavior: Categorical, sample: Real[Tensor, "*B size"]) -> Float[Tensor, "*B"]:
        # One gather instead of two.
        return (self.log_probs - behavior.log_probs).gather(-1, self.find_index(sample)).squeeze(-1)

    def expectation(self, value: Float[Tensor, "*B A"]) -> Float[Tensor, "*B"]:
        """Return sum_a pi(a) value(a)."""
        return (self.probs * value).sum(-1)

    @cached_property
    def entropy(self) -> Tensor:
        """-sum_a pi(a) log pi(a) [...], in nats."""
        return -self.expectation(self.log_probs)

    def entropy_gradient(self) -> Float[Tensor, "*B A"]:
        return self.probs * (self.expectation(self.log_probs).unsqueeze(-1) - self.log_probs)

    def kl(self, average: Categorical) -> Float[Tensor, "*B"]:
        return average.expectation(average.log_probs - self.log_probs)

    def kl_gradient(self, average: Categorical) -> Float[Tensor, "*B A"]:
        return self.probs - average.probs

    def fisher_product(self, vector: Float[Tensor, "*B A"]) -> Float[Tensor, "*B A"]:
        """M = diag(pi) - pi pi^T."""
        return self.probs * (vector - self.expectation(vector).unsqueeze(-1))

    def score(self, sample: Real[Tensor, "*B size"], weight: Float[Tensor, "*B"]) -> Float[Tensor, "*B A"]:
        weight = weight.unsqueeze(-1)
        return (self.probs * -weight).scatter_add_(-1, self.find_index(sample), weight)

    def summed_score(self, weight: Float[Tensor, "*B A"]) -> Float[Tensor, "*B A"]:
        """Return sum_a weight(a) d log pi(a) / d logits."""
        return torch.addcmul(weight, self.probs, weight.sum(-1, keepdim=True), value=-1)

    def draw_samples(self, count: int) -> Float[Tensor, "count *B 1"]:
        # Inversion: one uniform number per sample is ten times as fast as one per action. It is scaled by the rounded
        # sum of the probabilities, so that the action always has a positive probability.
        cumulative = self.probs.movedim(-1, 0).cumsum(0)
        uniform = cumulative.new_empty((count, 1, *cumulative.shape[1:])).uniform_()
        return (cumulative <= uniform * cumulative[-1]).sum(1).unsqueeze(-1).float()

    def score_wrt_probs(self, weight: Float[Tensor, "*B A"]) -> Float[Tensor, "*B A"]:
        """Return sum_a weight(a) d log pi(a) / d pi, with the probabilities as free coordinates."""
        return weight / self.probs.clamp(min=self.MIN_PROB)

    def kl_gradient_wrt_probs(self, average: Categorical) -> Float[Tensor, "*B A"]:
        """Return d KL[average || self] / d pi, with the probabilities as free coordinates."""
        return -average.probs / self.probs.clamp(min=self.MIN_PROB)


class CategoricalFamily(DistributionFamily[Categorical]):
    """The policies over one discrete branch. Samples and actions are one index; a critic reads it one-hot."""

    size = dimensions = 1

    def __init__(self, actions: int):
        self.statistics_size = self.encoded_size = actions
        self.branches = (actions,)

    def __call__(self, statistics: Float[Tensor, "*B A"]) -> Categorical:
        return Categorical(statistics)

    def encode(self, sample: Float[Tensor, "*B 1"]) -> Float[Tensor, "*B A"]:
        return sample.new_zeros((*sample.shape[:-1], self.encoded_size)).scatter_(-1, sample.long(), 1.0)

    def sample(self, statistics: np.ndarray, rng: np.random.Generator, noise: np.ndarray | None = None) -> np.ndarray:
        exponential = rng.standard_exponential(statistics.shape, np.float32)
        # Gumbel noise of an exponential sample of 0 would be infinite, and select even a forbidden action.
        return self.mode(statistics - np.log(np.maximum(exponential, np.finfo(np.float32).tiny)))

    def mode(self, statistics: np.ndarray) -> np.ndarray:
        return statistics.argmax(-1)[:, None].astype(np.float32)

    def to_action(self, sample: np.ndarray) -> np.ndarray:
        return sample

    def with_noise(self, statistics: np.ndarray, level: np.ndarray) -> np.ndarray:
        is_allowed, log_probs = statistics > MASKED_LOGIT / 2, _log_softmax(statistics)
        uniform = -np.log(np.maximum(is_allowed.sum(-1, keepdims=True), 1))
        level = level[:, None]
        with np.errstate(divide="ignore"):  # at the levels 0 and 1 one of the two terms is log 0
            mixture = np.logaddexp(np.log1p(-level) + log_probs, np.log(level) + uniform)
        return np.where(is_allowed, mixture, MASKED_LOGIT).astype(np.float32)

    def concentrate(self, statistics: Float[Tensor, "*B A"], sample: Float[Tensor, "*B 1"]) -> Float[Tensor, "*B A"]:
        logits = statistics.clamp(max=MASKED_LOGIT).where(statistics < MASKED_LOGIT / 2, math.log(OTHER_ACTION))
        return logits.scatter(-1, sample.long(), 0.0).log_softmax(-1)

    def with_repetition(self, statistics: np.ndarray, sample: np.ndarray, level: np.ndarray) -> np.ndarray:
        rows, action = np.arange(len(statistics)), sample[:, 0].astype(np.int64)
        is_allowed = statistics > MASKED_LOGIT / 2
        level = np.where(is_allowed[rows, action], level, 0)
        log_probs = _log_softmax(statistics) + np.log1p(-level)[:, None]
        with np.errstate(divide="ignore"):  # log 0 at level 0
            log_probs[rows, action] = np.logaddexp(log_probs[rows, action], np.log(level))
        return np.where(is_allowed, log_probs, MASKED_LOGIT).astype(np.float32)

    def export_action(self, statistics: Tensor, mask: Tensor, selection: Selection) -> ExportedAction:
        return ExportedAction((), (selection.index(mask_logits(statistics, mask)),))


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def mask_logits(logits: Tensor, mask: Tensor) -> Tensor:
    """Return finite logits with probability 0 for forbidden actions; if all are forbidden, all are equal."""
    return logits * mask - 1e8 * (1 - mask)


class FlattenedCategorical(Categorical):
    """A categorical distribution over combinations. A sample is one index of each branch [..., branches]."""

    def __init__(self, statistics: Float[Tensor, "*B K"], branches: Sequence[int]):
        super().__init__(statistics)
        self.branches = tuple(branches)

    def find_index(self, sample: Real[Tensor, "*B branches"]) -> Tensor:
        return find_combination(sample, self.branches)

    def draw_samples(self, count: int) -> Float[Tensor, "count *B branches"]:
        combination = super().draw_samples(count).squeeze(-1).long()
        return torch.from_numpy(list_combinations(self.branches)).to(combination.device)[combination]


class FlattenedFamily(CategoricalFamily):
    """The policies over the combinations of several branches, with one logit for each of the K combinations.

    Samples and actions are one index of each branch; a critic reads them one-hot. Exploration noise and repetition
    select a combination instead of an action of each branch.

    Raises:
        ValueError: There are more than `MAX_COMBINATIONS` combinations.
    """

    def __init__(self, branches: Sequence[int]):
        super().__init__(check_combinations(branches))
        self.size, self.branches, self.encoded_size = len(branches), tuple(branches), sum(branches)
        self.combinations = list_combinations(branches)

    def __call__(self, statistics: Float[Tensor, "*B K"]) -> FlattenedCategorical:
        return FlattenedCategorical(statistics, self.branches)

    def encode(self, sample: Float[Tensor, "*B branches"]) -> Float[Tensor, "*B encoded"]:
        codes = one_hot_combinations(self.branches).to(sample)
        return codes[find_combination(sample, self.branches).squeeze(-1)]

    def mode(self, statistics: np.ndarray) -> np.ndarray:
        return self.combinations[statistics.argmax(-1)]

    def concentrate(self, statistics: Float[Tensor, "*B K"], sample: Float[Tensor, "*B size"]) -> Float[Tensor, "*B K"]:
        return super().concentrate(statistics, find_combination(sample, self.branches).to(sample))

    def with_repetition(self, statistics: np.ndarray, sample: np.ndarray, level: np.ndarray) -> np.ndarray:
        combination = np.ravel_multi_index(tuple(sample.T.astype(np.int64)), self.branches)
        return super().with_repetition(statistics, combination[:, None], level)

    def export_action(self, statistics: Tensor, mask: Tensor, selection: Selection) -> ExportedAction:
        codes = one_hot_combinations(self.branches)
        allowed = find_allowed_combinations(mask, self.branches, codes)
        combination = selection.index(mask_logits(statistics, allowed))
        # The index of each branch, in operators that all importers support.
        taken = torch.nn.functional.one_hot(combination[:, 0], self.statistics_size).float() @ codes
        return ExportedAction((), tuple(part.argmax(-1, keepdim=True) for part in split_columns(taken, self.branches)))


def make_flattened_family(branches: Sequence[int]) -> CategoricalFamily:
    """Return the policies over the combinations of branches, whose samples are one index of each branch.

    Raises:
        ValueError: There are more than `MAX_COMBINATIONS` combinations of several branches.
    """
    return CategoricalFamily(*branches) if len(branches) == 1 else FlattenedFamily(branches)
