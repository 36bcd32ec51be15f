"""Policies over the combinations of several discrete branches, as one categorical distribution.

Unlike independent branches, such a policy can represent every distribution over the combinations.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Real
from torch import Tensor

from algorithm.distributions.categorical import Categorical, CategoricalFamily, mask_logits
from algorithm.distributions.combinations import (
    check_combinations,
    find_allowed_combinations,
    find_combination,
    list_combinations,
    one_hot_combinations,
    split_columns,
)
from algorithm.distributions.distribution import ExportedAction, Selection


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
