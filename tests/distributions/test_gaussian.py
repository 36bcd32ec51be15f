import pytest
import torch

from algorithm.distributions import ClippedGaussianFamily, FixedStdGaussian, Gaussian
from algorithm.losses import trust_region_multiplier
from tests.oracles import close, tensor

KINDS = [Gaussian, FixedStdGaussian]


def with_std(std, *mean):
    """Return statistics of a Gaussian with the same std in every dimension."""
    return torch.cat((tensor(*mean), tensor(std).log().expand(len(mean))))


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


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_far_from_the_mean_gives_finite_results(kind):
    policy, average = (kind(with_std(std, *[mean] * 21).float()) for std, mean in ((0.1, 0.0), (0.3, 1.0)))
    sample = torch.full((21,), 5.0)
    log_ratio = policy.log_prob(sample) - average.log_prob(sample)
    assert log_ratio.abs() > 1e3 and log_ratio.isfinite()
    for value in (policy.score(sample, torch.tensor(1.0)), policy.kl(average), policy.kl_gradient(average)):
        assert value.isfinite().all()
