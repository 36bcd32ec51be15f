"""Flattened branches: one categorical distribution over combinations, compared with enumeration and autograd."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from torch.distributions import Categorical as TheirCategorical
from torch.distributions import kl_divergence

from algorithm.distributions import (
    MASKED_LOGIT,
    MODE,
    SAMPLE,
    Categorical,
    CategoricalFamily,
    FlattenedFamily,
    make_flattened_family,
)
from algorithm.distributions.categorical import find_allowed_combinations, one_hot_combinations
from tests.distributions.oracles import DRAWS, random, within_noise
from tests.oracles import close, softmax

BRANCHES = [(2, 3), (3, 2), (2, 2, 2), (4, 1, 3)]
every_family = pytest.mark.parametrize("family", [FlattenedFamily(b) for b in BRANCHES], ids=map(str, BRANCHES))
WEIGHT = random(5, 4, seed=5)


def combinations(family):
    """Return the indices of each combination, the last branch varying fastest."""
    return list(product(*map(range, family.branches)))


def statistics_of(family, *shape, seed=0):
    return 1.5 * random(*shape, family.statistics_size, seed=seed)


def draw_combinations(family, *shape, seed=0):
    """Return random combinations [*shape] and the samples that consist of their indices [*shape, branches]."""
    place = np.random.default_rng(seed).integers(family.statistics_size, size=shape)
    return torch.from_numpy(place), torch.tensor(combinations(family))[torch.from_numpy(place)]


def find_places(family, samples):
    """Return the combination of each row of samples [n, branches]."""
    return np.array([combinations(family).index(tuple(map(int, sample))) for sample in samples])


@every_family
def test_sizes_count_combinations_and_branches(family):
    count = len(combinations(family))
    assert (family.size, family.statistics_size, family.encoded_size) == (
        len(family.branches),
        count,
        sum(family.branches),
    )
    assert family.dimensions == 1  # one distribution


@every_family
def test_values_equal_those_of_one_categorical_distribution_over_combinations(family):
    statistics, other = (statistics_of(family, 5, 4, seed=seed) for seed in (1, 2))
    policy, average = family(statistics), family(other)
    theirs, their_average = TheirCategorical(logits=statistics), TheirCategorical(logits=other)
    place, indices = draw_combinations(family, 5, 4)
    for sample in (indices, indices.float()):  # the dtype when sampled, and when stored
        close(policy.log_prob(sample), theirs.log_prob(place))
        close(policy.log_ratio(average, sample), theirs.log_prob(place) - their_average.log_prob(place))
    close(policy.entropy, theirs.entropy())
    close(policy.kl(average), kl_divergence(their_average, theirs))


def in_numpy(family, row):
    return family.sample(np.tile(row, (DRAWS, 1)), np.random.default_rng(0))


def in_torch(family, row):
    torch.manual_seed(0)
    return family(torch.from_numpy(row)).draw_samples(DRAWS).numpy()


def by_export(family, row):
    torch.manual_seed(0)
    allowed = torch.ones(DRAWS, sum(family.branches))
    action = family.export_action(torch.from_numpy(np.tile(row, (DRAWS, 1))), allowed, SAMPLE)
    assert action.continuous == () and all(index.dtype == torch.int64 for index in action.indices)
    return torch.cat(action.indices, -1).numpy()


@every_family
@pytest.mark.parametrize("draw", [in_numpy, in_torch, by_export])
def test_samples_are_indices_of_each_branch_with_the_frequencies_of_their_combination(family, draw):
    row = statistics_of(family).numpy().astype(np.float32)
    row[1] = MASKED_LOGIT
    sample = draw(family, row)
    assert sample.shape == (DRAWS, family.size) and sample.dtype == (np.int64 if draw is by_export else np.float32)
    probs = softmax(row)
    frequency = np.bincount(find_places(family, sample), minlength=len(probs)) / DRAWS
    assert frequency[1] == 0
    within_noise(frequency, probs, np.sqrt(probs * (1 - probs)))
    if draw is in_numpy:
        assert family.to_action(sample) is sample


@every_family
def test_the_mode_is_the_most_probable_combination(family):
    statistics = statistics_of(family, 40).float()
    best = np.array(combinations(family))[statistics.argmax(-1)]
    mode = family.mode(statistics.numpy())
    assert mode.dtype == np.float32
    np.testing.assert_array_equal(mode, best)


def test_the_mode_is_not_the_most_probable_index_of_each_branch():
    # P(0, 0) = 0.4, but the index 1 of the first branch has the probability 0.6.
    logits = np.log(np.float32([[0.4, 1e-6, 0.0999, 0.2, 0.3, 1e-6]]))
    np.testing.assert_array_equal(FlattenedFamily((2, 3)).mode(logits), [[0, 0]])


@every_family
def test_encoded_samples_are_the_one_hot_indices_of_each_branch(family):
    _, sample = draw_combinations(family, 3, 10)
    encoded = family.encode(sample.float())
    assert encoded.dtype == torch.float32
    eyes = [torch.eye(n)[index] for n, index in zip(family.branches, sample.unbind(-1), strict=True)]
    close(encoded, torch.cat(eyes, -1))


def masks_of(branches):
    """Return every mask of the actions of the branches [n, sum of branches]."""
    return torch.tensor(list(product((0.0, 1.0), repeat=sum(branches))))


def allowed_by_enumeration(mask, branches):
    """Return for each combination whether all its actions are allowed; a branch without allowed actions allows all."""
    parts = np.split(np.asarray(mask), np.cumsum(branches)[:-1])
    parts = [part if part.any() else np.ones_like(part) for part in parts]
    return np.array(
        [all(part[i] > 0 for part, i in zip(parts, place, strict=True)) for place in product(*map(range, branches))]
    )


@pytest.mark.parametrize("branches", [(2, 3), (2, 2, 2), (3,)])
def test_a_combination_is_allowed_if_all_its_actions_are(branches):
    masks = masks_of(branches)
    expected = np.stack([allowed_by_enumeration(mask, branches) for mask in masks])
    for mask in (masks, 5 * masks, masks.int(), masks - (1 - masks)):  # above 0 is allowed
        np.testing.assert_array_equal(
            find_allowed_combinations(mask, branches, one_hot_combinations(branches)), expected
        )


@every_family
def test_exported_actions_respect_every_mask(family):
    masks = masks_of(family.branches)
    allowed = np.stack([allowed_by_enumeration(mask, family.branches) for mask in masks])
    assert (allowed.sum(-1) > 0).all()
    statistics = 50 * statistics_of(family, len(masks)).float()  # large logits of forbidden combinations
    best = np.where(allowed, statistics, -np.inf).argmax(-1)
    found = torch.cat(family.export_action(statistics, masks, MODE).indices, -1)
    np.testing.assert_array_equal(find_places(family, found), best)
    torch.manual_seed(0)
    for logits in (statistics, torch.zeros_like(statistics)):
        for _ in range(10):
            sample = find_places(family, torch.cat(family.export_action(logits, masks, SAMPLE).indices, -1))
            assert allowed[np.arange(len(masks)), sample].all()


def test_forbidden_combinations_have_no_effect_and_results_are_finite():
    family = FlattenedFamily((2, 3))
    statistics = statistics_of(family, 3).float()
    statistics[0, [0, 4]] = statistics[1, 1:] = statistics[2] = MASKED_LOGIT
    policy, average = family(statistics), family(statistics + 0.1 * statistics_of(family, 3, seed=1).float())
    sample = torch.from_numpy(family.sample(statistics.numpy(), np.random.default_rng(0)))
    for value in (
        policy.entropy,
        policy.entropy_gradient(),
        policy.log_prob(sample),
        policy.score(sample, torch.ones(3)),
        policy.kl(average),
        policy.kl_gradient(average),
        policy.fisher_product(torch.ones(3, 6)),
    ):
        assert value.isfinite().all()
    assert policy.probs[0, [0, 4]].eq(0).all() and policy.score(sample, torch.ones(3))[0, [0, 4]].eq(0).all()
    close(policy.probs[1:], torch.tensor([[1.0, 0, 0, 0, 0, 0], [1 / 6] * 6]), atol=1e-6)


@every_family
def test_noise_is_a_mixture_with_the_uniform_policy_over_allowed_combinations(family):
    row = statistics_of(family).numpy().astype(np.float32)
    row[[0, 2]] = MASKED_LOGIT
    allowed = row != np.float32(MASKED_LOGIT)
    noisy = family.with_noise(np.stack((row, row)), np.float64([0.3, 0.0]))
    assert noisy.dtype == np.float32
    np.testing.assert_allclose(softmax(noisy[0]), 0.7 * softmax(row) + 0.3 * allowed / allowed.sum(), atol=1e-6)
    np.testing.assert_allclose(softmax(noisy[1]), softmax(row), atol=1e-6)
    np.testing.assert_array_equal(noisy[:, ~allowed], np.float32(MASKED_LOGIT))


@every_family
def test_repetition_of_every_combination_by_enumeration(family):
    count = family.statistics_size
    row = statistics_of(family).numpy().astype(np.float32)
    row[1] = MASKED_LOGIT
    level = np.linspace(0, 0.95, count, dtype=np.float32)
    samples = np.float32(combinations(family))
    kept = row.copy()
    mixed = family.with_repetition(np.tile(row, (count, 1)), samples, level)
    np.testing.assert_array_equal(row, kept)
    assert mixed.dtype == np.float32
    for k in range(count):
        p = 0 if k == 1 else level[k]  # a forbidden combination is not repeated
        expected = (1 - p) * softmax(row) + p * np.eye(count)[k]
        np.testing.assert_allclose(softmax(mixed[k]), expected, atol=1e-6)
        np.testing.assert_allclose(np.exp(np.float64(mixed[k])).sum(), 1, atol=1e-5)  # log-probabilities
    np.testing.assert_array_equal(mixed[:, 1], np.float32(MASKED_LOGIT))


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


def test_a_single_branch_is_not_flattened():
    family = make_flattened_family((513,))
    assert type(family) is CategoricalFamily and type(family(random(2, 513))) is Categorical
    assert isinstance(make_flattened_family((2, 3)), FlattenedFamily)


def test_more_than_512_combinations_are_refused():
    assert FlattenedFamily((2,) * 9).statistics_size == 512
    message = r"there are 514 combinations of discrete branches \[2, 257\].*at most 512 are supported$"
    for make in (FlattenedFamily, make_flattened_family):
        with pytest.raises(ValueError, match=message):
            make((2, 257))
