import numpy as np
import pytest
import torch
from torch.distributions import Independent, Normal, kl_divergence

from algorithm.distributions import ClippedGaussianFamily, FixedStdGaussian, Gaussian, TanhGaussianFamily
from algorithm.losses import trust_region_multiplier
from tests.distributions.oracles import DRAWS, random, within_noise
from tests.oracles import close, tensor

STATISTICS, AVERAGE = (0.7 * random(5, 2, 6, seed=seed) for seed in (1, 2))
SAMPLE, WEIGHT = random(5, 2, 3, seed=3), random(5, 2, seed=4)
KINDS = [Gaussian, FixedStdGaussian]
FAMILIES = [ClippedGaussianFamily, TanhGaussianFamily]


def theirs(statistics):
    mean, log_std = statistics.chunk(2, -1)
    return Independent(Normal(mean, log_std.exp()), 1)


def with_std(std, *mean):
    """Return statistics of a Gaussian with the same std in every dimension."""
    return torch.cat((tensor(*mean), tensor(std).log().expand(len(mean))))


@pytest.mark.parametrize("kind", KINDS)
def test_values_equal_torch_distributions(kind):
    policy, average = kind(STATISTICS), kind(AVERAGE)
    close(policy.log_prob(SAMPLE), theirs(STATISTICS).log_prob(SAMPLE))
    close(policy.entropy, theirs(STATISTICS).entropy())
    close(policy.kl(average), kl_divergence(theirs(AVERAGE), theirs(STATISTICS)))
    assert policy.kl(kind(STATISTICS)).eq(0).all() and policy.kl_gradient(policy).eq(0).all()


def test_known_ratios_and_traces():
    behavior, policy = (Gaussian(with_std(0.3, *mean).expand(3, 4)) for mean in ((0, 0), (0.3, -0.15)))
    sample = tensor([0.1, 0.2], [0.4, -0.3], [-0.2, 0.1])
    rho = (policy.log_prob(sample) - behavior.log_prob(sample)).exp()
    close(rho, tensor(0.535261, 3.347900, 0.232624), atol=1e-6)
    close(
        rho.pow(1 / ClippedGaussianFamily(2, Gaussian).dimensions).clamp(max=1),
        tensor(0.731616, 1, 0.482311),
        atol=1e-6,
    )


def test_known_step_within_the_trust_region():
    policy, average = (FixedStdGaussian(with_std(0.3, *mean)) for mean in ((0.5, -0.2), (0, 0)))
    g, k = policy.score(tensor(0.8, 0.1), torch.tensor(2.0).double()), policy.kl_gradient(average)
    close(g, tensor(20 / 3, 20 / 3, 0, 0))
    close(k, tensor(0.5 / 0.09, -0.2 / 0.09, 0, 0))
    close(trust_region_multiplier(g, k, 1.0), tensor(0.592759), atol=1e-6)
    close(g - trust_region_multiplier(g, k, 1.0) * k, tensor(3.373564, 7.983908, 0, 0), atol=1e-6)
    k = policy.kl_gradient(policy)
    assert (g - trust_region_multiplier(g, k, 1.0) * k).equal(g)


def test_the_kl_is_that_from_the_average_to_the_policy():
    statistics, average = with_std(0.3, 0.5, -0.2), with_std(0.5, 0.0, 0.0)
    ours = Gaussian(statistics).kl_gradient(Gaussian(average))
    step = 1e-6 * torch.eye(4, dtype=torch.float64)

    def differences(kl):
        return torch.stack([(kl(statistics + e) - kl(statistics - e)) / 2e-6 for e in step])

    close(ours, differences(lambda x: kl_divergence(theirs(average), theirs(x))), atol=1e-6)
    reversed_kl = differences(lambda x: kl_divergence(theirs(x), theirs(average)))
    assert ((ours - reversed_kl).abs() > 0.1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_far_from_the_mean_gives_finite_results(kind):
    policy, average = (kind(with_std(std, *[mean] * 21).float()) for std, mean in ((0.1, 0.0), (0.3, 1.0)))
    sample = torch.full((21,), 5.0)
    log_ratio = policy.log_prob(sample) - average.log_prob(sample)
    assert log_ratio.abs() > 1e3 and log_ratio.isfinite()
    for value in (policy.score(sample, torch.tensor(1.0)), policy.kl(average), policy.kl_gradient(average)):
        assert value.isfinite().all()


ROWS = np.float32([[0.4, -2.0, np.log(0.3), np.log(2.0)], [3.0, 0.0, np.log(0.1), np.log(1.0)]])


def moments(sample, statistics):
    """Assert that samples [DRAWS, d] have the means, stds and no correlation of one row of statistics."""
    mean, log_std = np.split(statistics, 2)
    within_noise(sample.mean(0), mean, np.exp(log_std))
    within_noise(((sample - mean) ** 2).mean(0), np.exp(2 * log_std), np.sqrt(2) * np.exp(2 * log_std))
    within_noise(np.prod((sample - mean) / np.exp(log_std), -1).mean(), 0, 1)


@pytest.mark.parametrize("bounded", FAMILIES)
def test_samples_have_the_moments_of_the_statistics(bounded):
    family = bounded(2, Gaussian)
    in_numpy = family.sample(np.tile(ROWS, (DRAWS, 1)), np.random.default_rng(0))
    assert in_numpy.shape == (2 * DRAWS, 2) and in_numpy.dtype == np.float32
    torch.manual_seed(0)
    in_torch = family(torch.from_numpy(ROWS)).draw_samples(DRAWS)
    assert in_torch.shape == (DRAWS, 2, 2) and in_torch.dtype == torch.float32
    for sample in (in_numpy.reshape(DRAWS, 2, 2), in_torch.numpy()):
        for row in range(2):
            moments(np.float64(sample[:, row]), ROWS[row])


@pytest.mark.parametrize(
    ("bounded", "bound"), [(ClippedGaussianFamily, lambda x: np.clip(x, -1, 1)), (TanhGaussianFamily, np.tanh)]
)
def test_samples_are_unbounded_and_actions_are_bounded(bounded, bound):
    family = bounded(2, FixedStdGaussian)
    assert (family.size, family.statistics_size, family.dimensions, family.encoded_size) == (2, 4, 2, 2)
    sample = family.sample(np.tile(ROWS, (100, 1)), np.random.default_rng(0))
    assert np.abs(sample).max() > 2
    action = family.to_action(sample)
    assert action.dtype == np.float32 and np.abs(action).max() <= 1
    np.testing.assert_array_equal(action, bound(sample))
    encoded = family.encode(torch.from_numpy(sample))
    np.testing.assert_allclose(encoded.numpy(), action, atol=1e-6)  # the input of a critic is the executed action
    policy, wide = family(torch.from_numpy(ROWS[1:])), torch.tensor([[1.5, 0.0]])
    assert policy.log_prob(wide) != policy.log_prob(family.encode(wide))  # the density of the sample


@pytest.mark.parametrize("bounded", FAMILIES)
def test_the_mode_is_the_mean(bounded):
    mode = bounded(2, Gaussian).mode(ROWS)
    np.testing.assert_array_equal(mode, ROWS[:, :2])
    assert mode.dtype == np.float32 and not np.shares_memory(mode, ROWS)


@pytest.mark.parametrize("bounded", FAMILIES)
def test_noise_increases_each_std(bounded):
    family, before = bounded(2, Gaussian), ROWS.copy()
    noisy = family.with_noise(ROWS, np.float64([0.4, 0.0]))
    assert noisy.dtype == np.float32
    np.testing.assert_array_equal(ROWS, before)
    np.testing.assert_allclose(noisy[0], [*ROWS[0, :2], np.log(0.5), np.log(np.sqrt(4.16))], atol=1e-6)
    np.testing.assert_allclose(noisy[1], ROWS[1], atol=1e-6)  # level 0
    rng = np.random.default_rng(0)
    sample = family.sample(np.tile(ROWS[:1], (DRAWS, 1)), rng) + 0.4 * rng.standard_normal((DRAWS, 2))
    moments(np.float64(sample), noisy[0])
