"""Flattened branches: one categorical distribution over combinations, compared with enumeration and autograd."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from algorithm.distributions import MODE, SAMPLE, CategoricalFamily, FlattenedFamily
from algorithm.distributions.categorical import find_allowed_combinations, one_hot_combinations
from tests.distributions.oracles import find_allowed, find_place, random
from tests.oracles import softmax

BRANCHES = [(2, 3), (3, 2), (2, 2, 2), (4, 1, 3)]
every_family = pytest.mark.parametrize("family", [FlattenedFamily(b) for b in BRANCHES], ids=map(str, BRANCHES))


def test_the_mode_is_not_the_most_probable_index_of_each_branch():
    # P(0, 0) = 0.4, but the index 1 of the first branch has the probability 0.6.
    logits = np.log(np.float32([[0.4, 1e-6, 0.0999, 0.2, 0.3, 1e-6]]))
    np.testing.assert_array_equal(FlattenedFamily((2, 3)).mode(logits), [[0, 0]])


def masks_of(branches):
    """Return every mask of the actions of the branches [n, sum of branches]."""
    return torch.tensor(list(product((0.0, 1.0), repeat=sum(branches))))


@pytest.mark.parametrize("branches", [(2, 3), (2, 2, 2), (3,)])
def test_a_combination_is_allowed_if_all_its_actions_are(branches):
    masks = masks_of(branches)
    expected = np.stack([find_allowed(mask, branches) for mask in masks])
    for mask in (masks, 5 * masks, masks.int(), masks - (1 - masks)):  # above 0 is allowed
        np.testing.assert_array_equal(
            find_allowed_combinations(mask, branches, one_hot_combinations(branches)), expected
        )


@every_family
def test_exported_actions_respect_every_mask(family):
    masks = masks_of(family.branches)
    allowed = np.stack([find_allowed(mask, family.branches) for mask in masks])
    assert (allowed.sum(-1) > 0).all()
    statistics = 75 * random(len(masks), family.statistics_size).float()  # large logits of forbidden combinations
    best = np.where(allowed, statistics, -np.inf).argmax(-1)
    found = torch.cat(family.export_action(statistics, masks, MODE).indices, -1)
    np.testing.assert_array_equal(find_place(family.branches, found), best)
    torch.manual_seed(0)
    for logits in (statistics, torch.zeros_like(statistics)):
        for _ in range(10):
            sample = torch.cat(family.export_action(logits, masks, SAMPLE).indices, -1)
            assert allowed[np.arange(len(masks)), find_place(family.branches, sample)].all()


def test_repetition_repeats_combinations_where_independent_branches_repeat_each_index():
    flattened, independent = FlattenedFamily((2, 2)), [CategoricalFamily(2)] * 2
    sample, level = np.float32([[1, 0]]), np.float32([0.5])
    probs = softmax(flattened.with_repetition(np.zeros((1, 4), np.float32), sample, level)[0])
    np.testing.assert_allclose(probs, [0.125, 0.125, 0.625, 0.125], atol=1e-6)
    first, second = (
        softmax(family.with_repetition(np.zeros((1, 2), np.float32), sample[:, i : i + 1], level)[0])
        for i, family in enumerate(independent)
    )
    np.testing.assert_allclose(np.outer(first, second).ravel(), [0.1875, 0.0625, 0.5625, 0.1875], atol=1e-6)
