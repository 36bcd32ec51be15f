import numpy as np
import pytest
import torch
from torch.distributions import Categorical as TheirCategorical
from torch.distributions import Independent, Normal, kl_divergence

from algorithm.distributions import (
    MASKED_LOGIT,
    Categorical,
    CategoricalFamily,
    ClippedGaussianFamily,
    DistributionFamily,
    FixedStdGaussian,
    Gaussian,
    HybridFamily,
    JointDistribution,
    JointFamily,
    TanhGaussianFamily,
    make_family,
)
from tests.distributions.oracles import DRAWS, one_hot, random, within_noise
from tests.oracles import close, softmax

# Two continuous dimensions, branches of 3 and 2: statistics are 2 means, 2 log std, 3 logits, 2 logits.
HYBRID = make_family(2, (3, 2), ClippedGaussianFamily, Gaussian)
STATISTICS, AVERAGE = (0.7 * random(5, 4, 9, seed=seed) for seed in (1, 2))
INDICES = np.random.default_rng(0).integers((3, 2), size=(5, 4, 2))
SAMPLE = torch.cat((random(5, 4, 2, seed=3), torch.from_numpy(INDICES)), -1)
WEIGHT = random(5, 4, seed=5)


def theirs(statistics):
    mean, log_std, three, two = statistics.split([2, 2, 3, 2], -1)
    return [Independent(Normal(mean, log_std.exp()), 1), TheirCategorical(logits=three), TheirCategorical(logits=two)]


def log_prob(statistics):
    gaussian, three, two = theirs(statistics)
    return gaussian.log_prob(SAMPLE[..., :2]) + three.log_prob(SAMPLE[..., 2]) + two.log_prob(SAMPLE[..., 3])


def entropy(statistics):
    return sum(part.entropy() for part in theirs(statistics))


def kl_from_average(statistics):
    return sum(kl_divergence(*pair) for pair in zip(theirs(AVERAGE), theirs(statistics), strict=True))


def test_values_are_sums_over_the_parts():
    policy = HYBRID(STATISTICS)
    close(policy.log_prob(SAMPLE), log_prob(STATISTICS))
    close(policy.entropy, entropy(STATISTICS))
    close(policy.kl(HYBRID(AVERAGE)), kl_from_average(STATISTICS))


ROW = np.float32([0.4, -2.0, np.log(0.3), np.log(2.0), 1.0, MASKED_LOGIT, 0.0, 0.0, 2.0])


def in_numpy():
    return HYBRID.sample(np.tile(ROW, (DRAWS, 1)), np.random.default_rng(0))


def in_torch():
    torch.manual_seed(0)
    return HYBRID(torch.from_numpy(ROW[None])).draw_samples(DRAWS)[:, 0].numpy()


@pytest.mark.parametrize("draw", [in_numpy, in_torch])
def test_samples_follow_each_part_independently(draw):
    sample = draw()
    assert sample.shape == (DRAWS, 4) and sample.dtype == np.float32
    sample = np.float64(sample)
    within_noise(sample[:, :2].mean(0), [0.4, -2.0], np.array([0.3, 2.0]))
    for column, probs in ((2, softmax(ROW[4:7])), (3, softmax(ROW[7:]))):
        frequency = np.bincount(sample[:, column].astype(int), minlength=len(probs)) / DRAWS
        within_noise(frequency, probs, np.sqrt(probs * (1 - probs)))
    standard = (sample - sample.mean(0)) / sample.std(0)
    correlation = standard.T @ standard / DRAWS
    within_noise(correlation, np.eye(4), np.ones((4, 4)))


def test_each_part_reads_its_own_columns():
    sample = HYBRID.sample(np.tile(ROW, (50, 1)), np.random.default_rng(0))
    action, encoded = HYBRID.to_action(sample), HYBRID.encode(torch.from_numpy(sample))
    assert (HYBRID.size, HYBRID.statistics_size, HYBRID.dimensions, HYBRID.encoded_size) == (4, 9, 4, 7)
    assert np.abs(sample[:, :2]).max() > 1 and action.dtype == np.float32
    np.testing.assert_array_equal(action[:, :2], np.clip(sample[:, :2], -1, 1))
    np.testing.assert_array_equal(action[:, 2:], sample[:, 2:])
    close(encoded[:, :2], torch.from_numpy(action[:, :2]))
    close(encoded[:, 2:5], one_hot(torch.from_numpy(sample[:, 2:3]), 3).float())
    close(encoded[:, 5:], one_hot(torch.from_numpy(sample[:, 3:]), 2).float())
    np.testing.assert_array_equal(HYBRID.mode(ROW[None]), np.float32([[0.4, -2.0, 0, 1]]))


def test_noise_is_added_to_each_part():
    noisy = HYBRID.with_noise(np.stack((ROW, ROW)), np.float32([0.4, 0.0]))
    assert noisy.dtype == np.float32
    np.testing.assert_allclose(noisy[0, :4], [0.4, -2.0, np.log(0.5), np.log(np.sqrt(4.16))], atol=1e-6)
    np.testing.assert_allclose(softmax(noisy[0, 4:7]), 0.6 * softmax(ROW[4:7]) + [0.2, 0, 0.2], atol=1e-6)
    np.testing.assert_allclose(softmax(noisy[0, 7:]), 0.6 * softmax(ROW[7:]) + 0.2, atol=1e-6)
    np.testing.assert_allclose(noisy[1, :4], ROW[:4], atol=1e-6)
    np.testing.assert_allclose(softmax(noisy[1, 7:]), softmax(ROW[7:]), atol=1e-6)


@pytest.mark.parametrize("family", [HYBRID, HybridFamily(2, (3, 2)), HybridFamily(2, ()), HYBRID.families[0]])
def test_given_noise_replaces_drawn_noise(family):
    statistics = 0.7 * random(50, family.statistics_size, seed=8).float().numpy()
    noise = np.random.default_rng(1).standard_normal((50, 2), np.float32)
    sample = family.sample(statistics, np.random.default_rng(0), noise)
    assert sample.dtype == np.float32 and sample.shape == (50, family.size)
    # Samples are linear in the noise, given the branches.
    twice, zero = (family.sample(statistics, np.random.default_rng(0), factor * noise) for factor in (2, 0))
    np.testing.assert_array_equal(twice[:, 2:], sample[:, 2:])
    np.testing.assert_allclose(twice + zero, 2 * sample, atol=1e-5)
    if not family.branches:
        np.testing.assert_array_equal(zero, family.mode(statistics))
        drawn = np.random.default_rng(0).standard_normal((50, 2), np.float32)
        expected = family.sample(statistics, np.random.default_rng(2), drawn)
        np.testing.assert_array_equal(family.sample(statistics, np.random.default_rng(0)), expected)


def test_masked_branches_give_finite_results():
    statistics = torch.from_numpy(np.stack((ROW, np.where(np.arange(9) < 4, ROW, np.float32(MASKED_LOGIT)))))
    policy, average = HYBRID(statistics), HYBRID(statistics + 0.1)
    sample = policy.draw_samples(1)[0]
    for value in (
        policy.log_prob(sample),
        policy.entropy,
        policy.entropy_gradient(),
        policy.kl(average),
        policy.kl_gradient(average),
        policy.score(sample, torch.ones(2)),
    ):
        assert value.isfinite().all()


def test_a_single_kind_of_action_has_its_own_family():
    assert isinstance(make_family(0, (3,), ClippedGaussianFamily, Gaussian), CategoricalFamily)
    assert isinstance(make_family(0, (3,), ClippedGaussianFamily, Gaussian)(random(2, 3)), Categorical)
    for bounded in (ClippedGaussianFamily, TanhGaussianFamily):
        family = make_family(3, (), bounded, FixedStdGaussian)
        assert type(family) is bounded and type(family(random(2, 6))) is FixedStdGaussian
    branches = make_family(0, (2, 2, 5), ClippedGaussianFamily, Gaussian)
    assert isinstance(branches, JointFamily) and isinstance(branches(random(2, 9)), JointDistribution)
    assert (branches.size, branches.statistics_size, branches.dimensions, branches.encoded_size) == (3, 9, 3, 9)
    assert all(isinstance(family, DistributionFamily) for family in (HYBRID, branches))


def test_an_empty_action_raises():
    with pytest.raises(ValueError, match="at least one"):
        make_family(0, (), ClippedGaussianFamily, Gaussian)


def test_only_families_without_continuous_actions_have_a_policy_that_repeats_an_action():
    level = np.float32([0.5])
    for branches in (make_family(0, (3, 2), ClippedGaussianFamily, Gaussian), HybridFamily(0, (3, 2))):
        mixed = branches.with_repetition(ROW[None, 4:], np.float32([[0, 1]]), level)
        np.testing.assert_allclose(softmax(mixed[0, :3]), 0.5 * softmax(ROW[4:7]) + [0.5, 0, 0], atol=1e-6)
        np.testing.assert_allclose(softmax(mixed[0, 3:]), 0.5 * softmax(ROW[7:]) + [0, 0.5], atol=1e-6)
    continuous = (TanhGaussianFamily(1, Gaussian), HYBRID, HybridFamily(1, (2,)))
    for family in continuous:
        statistics, sample = np.zeros((1, family.statistics_size), np.float32), np.zeros((1, family.size), np.float32)
        with pytest.raises(
            TypeError, match=r"^\w+Family has continuous actions, which have no probability of repetition"
        ):
            family.with_repetition(statistics, sample, level)
