"""What only one kind of distribution promises: Gaussian, categorical, flattened branches."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from algorithm.distributions import (
    MASKED_LOGIT,
    MODE,
    SAMPLE,
    Categorical,
    CategoricalFamily,
    FixedStdGaussian,
    FlattenedFamily,
    Gaussian,
)
from algorithm.distributions.categorical import find_allowed_combinations, one_hot_combinations
from tests.distributions.oracles import DRAWS, find_allowed, find_place, gradient, one_hot, random, within_noise
from tests.distributions.test_contract import compute_results, in_numpy, in_torch
from tests.oracles import close, softmax, tensor

KINDS = [Gaussian, FixedStdGaussian]


def with_std(std, *mean):
    """Return statistics of a Gaussian with the same std in every dimension."""
    return torch.cat((tensor(*mean), tensor(std).log().expand(len(mean))))


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_far_from_the_mean_gives_finite_results(kind):
    policy, average = (kind(with_std(std, *[mean] * 21).float()) for std, mean in ((0.1, 0.0), (0.3, 1.0)))
    sample = torch.full((21,), 5.0)
    log_ratio = policy.log_prob(sample) - average.log_prob(sample)
    assert log_ratio.abs() > 1e3 and log_ratio.isfinite()
    for value in (policy.score(sample, torch.tensor(1.0)), policy.kl(average), policy.kl_gradient(average)):
        assert value.isfinite().all()


LOGITS, AVERAGE, WEIGHT = (2 * random(5, 2, 4, seed=seed) for seed in (1, 2, 3))
TAKEN = torch.from_numpy(np.random.default_rng(0).integers(4, size=(5, 2, 1)))


def kl_from_average(log_probs):
    average = AVERAGE.log_softmax(-1)
    return (average.exp() * (average - log_probs)).sum(-1)


def test_sums_over_all_actions_equal_autograd():
    policy = Categorical(LOGITS)
    close(policy.summed_score(WEIGHT), gradient(lambda x: WEIGHT * x.log_softmax(-1), LOGITS))
    close(policy.expectation(WEIGHT), (LOGITS.softmax(-1) * WEIGHT).sum(-1))


def test_the_score_of_a_sample_is_the_summed_score_with_its_weight_only():
    policy, weight = Categorical(LOGITS), WEIGHT[..., 0]
    expected = gradient(lambda x: weight * Categorical(x).log_prob(TAKEN), LOGITS)
    for sample in (TAKEN, TAKEN.float()):
        close(policy.score(sample, weight), expected)
    close(policy.summed_score(one_hot(TAKEN, 4) * weight.unsqueeze(-1)), expected)


def test_gradients_with_respect_to_probabilities_equal_autograd():
    policy = Categorical(LOGITS)
    probs = LOGITS.softmax(-1)
    close(policy.score_wrt_probs(WEIGHT), gradient(lambda p: WEIGHT * p.log(), probs))
    close(policy.kl_gradient_wrt_probs(Categorical(AVERAGE)), gradient(lambda p: kl_from_average(p.log()), probs))


def test_the_memory_layout_has_no_effect():
    by_action = LOGITS.movedim(-1, 0).contiguous().movedim(0, -1)
    assert not by_action.is_contiguous()
    plain, laid_out, average = Categorical(LOGITS), Categorical(by_action), Categorical(AVERAGE)
    results = [compute_results(each, average, TAKEN, WEIGHT[..., 0], WEIGHT) for each in (plain, laid_out)]
    for found, expected in zip(*results, strict=True):
        close(found, expected)
    for name in ("summed_score", "score_wrt_probs"):
        close(getattr(laid_out, name)(WEIGHT), getattr(plain, name)(WEIGHT))


def test_masked_actions_give_finite_results():
    no = MASKED_LOGIT
    policy = Categorical(torch.tensor([[1.0, no, 0.5], [no, no, 3.0], [no, no, no]]))
    weight = torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    gradients = policy.score_wrt_probs(weight), policy.kl_gradient_wrt_probs(Categorical(torch.zeros(3, 3)))
    for value in (policy.summed_score(weight), *gradients):
        assert value.square().isfinite().all()


@pytest.mark.parametrize("draw", [in_numpy, in_torch])
@pytest.mark.parametrize(
    "logits",
    [
        [900.0, 901.0, 899.5],
        [-900.0, -901.0, -1200.0],
        [MASKED_LOGIT, 0.0, 1.0],
        [0.0, 1.0, MASKED_LOGIT],
        [0.0, MASKED_LOGIT, MASKED_LOGIT],
        [MASKED_LOGIT, MASKED_LOGIT, 0.0],
        [MASKED_LOGIT] * 3,
    ],
)
def test_samples_of_extreme_and_forbidden_logits_follow_the_policy(draw, logits):
    sample = draw(CategoricalFamily(3), np.float32([logits])).flatten()
    probs = softmax(logits)
    frequency = np.bincount(sample.astype(int), minlength=3) / DRAWS
    assert len(frequency) == 3
    if max(logits) > MASKED_LOGIT:  # otherwise any action
        within_noise(frequency, probs, np.sqrt(probs * (1 - probs)))


def test_an_exponential_sample_of_0_selects_no_forbidden_action():
    class Zero(np.random.Generator):
        def standard_exponential(self, shape, dtype):
            return np.tile(dtype([1, 0, 2]), (shape[0], 1))

    sample = CategoricalFamily(3).sample(np.float32([[0, MASKED_LOGIT, 0], [0, 0, 0]]), Zero(np.random.PCG64(0)))
    assert sample[:, 0].tolist() == [0, 1]


def test_rounding_does_not_select_the_last_actions(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "uniform_", lambda self: self.fill_(1 - 2**-24))
    for seed in range(200):
        logits = torch.cat((3 * random(50, 7, seed=seed).float(), torch.full((50, 2), MASKED_LOGIT)), -1)
        assert Categorical(logits).draw_samples(1).max() <= 6
    monkeypatch.setattr(torch.Tensor, "uniform_", lambda self: self.fill_(0))
    assert Categorical(torch.tensor([MASKED_LOGIT, 0.0])).draw_samples(1).item() == 1


STATISTICS = np.float32([[1.0, -2.0, 0.3, 0.0], [0.5, MASKED_LOGIT, 900.0, -300.0], [MASKED_LOGIT] * 4])


def test_noise_and_repetition_of_extreme_and_forbidden_logits():
    family, level = CategoricalFamily(4), np.float32([0.25, 0.4, 0.4])
    with np.errstate(all="raise", under="ignore"):
        noisy = family.with_noise(STATISTICS, level)
        repeating = family.with_repetition(STATISTICS, np.zeros((3, 1), np.float32), level)
    np.testing.assert_allclose(softmax(noisy[1]), [0.4 / 3, 0, 0.6 + 0.4 / 3, 0.4 / 3], atol=1e-6)
    np.testing.assert_allclose(softmax(repeating[1]), [0.4, 0, 0.6, 0], atol=1e-6)
    for mixed in (noisy, repeating):
        np.testing.assert_allclose(np.exp(mixed[:2]).sum(-1), 1, atol=1e-5)  # log-probabilities
        np.testing.assert_array_equal(mixed == MASKED_LOGIT, STATISTICS == MASKED_LOGIT)


BRANCHES = [(2, 3), (3, 2), (2, 2, 2), (4, 1, 3)]
every_family = pytest.mark.parametrize("family", [FlattenedFamily(b) for b in BRANCHES], ids=map(str, BRANCHES))


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
