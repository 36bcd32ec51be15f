import pytest
import torch

from algorithm.distributions import Categorical
from algorithm.losses import bias_correction, clipped_importance, sampled_bias_correction, truncated_importance
from tests.oracles import tensor

CLIPS = [0.0, 1.0, 3.0, 1e9]


def policy_gradient(pi, mu, q, action, target, clip):
    """Return the gradient of Eq. 9 with respect to the logits [A] of one row."""
    policy = Categorical(pi.log())
    v = policy.expectation(q)
    weight = bias_correction(pi, mu, q - v, clip)
    weight[action] += truncated_importance(pi[action] / mu[action], target - v, clip)
    return policy.summed_score(weight)


def expected_gradient(pi, mu, q, clip):
    """Return the mean over the actions of mu, with an exact critic."""
    return sum(mu[a] * policy_gradient(pi, mu, q, a, q[a], clip) for a in range(len(mu)) if mu[a] > 0)


def exact_gradient(pi, q):
    """Return d/dlogits sum_a pi(a) q(a), by autograd."""
    logits = pi.log().requires_grad_()
    (gradient,) = torch.autograd.grad((logits.softmax(-1) * q).sum(), logits)
    return gradient


PI, MU, Q = tensor(0.7, 0.2, 0.1), tensor(0.05, 0.45, 0.5), tensor(1, 2, -1)


def test_known_answers_of_both_terms():
    torch.testing.assert_close(truncated_importance(PI[0] / MU[0], tensor(1.5)[0], 5.0), tensor(7.5)[0])
    torch.testing.assert_close(bias_correction(PI, MU, torch.ones(3).double(), 5.0), tensor(0.45, 0, 0))
    gradient = policy_gradient(PI, MU, Q, 0, tensor(2.5)[0], 5.0)
    torch.testing.assert_close(gradient, tensor(2.25, -1.5, -0.75), rtol=0, atol=1e-10)


def test_known_answer_of_their_mean():
    torch.testing.assert_close(expected_gradient(PI, MU, Q, 5.0), tensor(0, 0.2, -0.2), rtol=0, atol=1e-10)


@pytest.mark.parametrize("clip", CLIPS)
def test_truncation_and_correction_together_are_unbiased(clip):
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        pi, mu = torch.randn(2, 4, generator=generator, dtype=torch.float64).mul(2).softmax(-1)
        q = torch.randn(4, generator=generator, dtype=torch.float64)
        torch.testing.assert_close(expected_gradient(pi, mu, q, clip), exact_gradient(pi, q), rtol=0, atol=1e-10)


def test_truncation_alone_is_biased():
    policy, q = Categorical(PI.log()), tensor(3, 2, -1)
    weight = MU * truncated_importance(PI / MU, q - policy.expectation(q), 3.0)
    assert not torch.allclose(policy.summed_score(weight), exact_gradient(PI, q), atol=1e-2)


def test_the_correction_includes_actions_with_mu_0():
    mu = tensor(0.5, 0, 0.5)
    for clip in (0.0, 1.0, 3.0):
        torch.testing.assert_close(expected_gradient(PI, mu, Q, clip), exact_gradient(PI, Q), rtol=0, atol=1e-10)


@pytest.mark.parametrize("clip", [1.0, 10.0])
def test_on_policy_there_is_no_correction(clip):
    assert bias_correction(PI, PI, Q - 1, clip).eq(0).all()
    assert truncated_importance(torch.ones(3).double(), Q, clip).eq(Q).all()


def test_without_truncation_there_is_no_correction():
    assert bias_correction(PI, MU, Q - 1, 1e9).eq(0).all()


def test_known_answers_of_the_sampled_correction():
    """[1 - c / rho]_+ A is 0 up to rho = c, and close to the advantage for large rho."""
    corrected = sampled_bias_correction(tensor(0.5, 5, 10, 1e6), tensor(3, 3, 3, -2), 5.0)
    torch.testing.assert_close(corrected, tensor(0, 0, 1.5, -1.99999))


@pytest.mark.parametrize("clip", [0.5, 1.0, 3.0])
def test_the_mean_of_the_sampled_correction_equals_the_correction_of_all_actions(clip):
    mean = (PI * sampled_bias_correction(PI / MU, Q - 1, clip)).sum()
    torch.testing.assert_close(mean, bias_correction(PI, MU, Q - 1, clip).sum())


def test_known_answers_of_the_clipped_weight():
    rho = tensor(0.7, 0.9, 1.1, 1.3)
    torch.testing.assert_close(clipped_importance(rho, tensor(2, 2, 2, 2), 0.2), tensor(1.4, 1.8, 2.2, 0))
    torch.testing.assert_close(clipped_importance(rho, tensor(-2, -2, -2, -2), 0.2), tensor(0, -1.8, -2.2, -2.6))
    assert clipped_importance(rho, tensor(0, 0, 0, 0), 0.2).eq(0).all()


@pytest.mark.parametrize("clip", [0.05, 0.2, 1.5])
def test_the_clipped_weight_is_the_gradient_of_the_clipped_objective(clip):
    """With respect to log pi of the taken action, by autograd (Schulman et al. 2017, Eq. 7)."""
    generator = torch.Generator().manual_seed(0)
    log_rho, advantage = torch.randn(2, 1000, generator=generator).double()
    log_rho.requires_grad_()
    rho = log_rho.exp()
    objective = torch.minimum(rho * advantage, rho.clamp(1 - clip, 1 + clip) * advantage).sum()
    (expected,) = torch.autograd.grad(objective, log_rho)
    assert expected.eq(0).any() and expected.ne(0).any()
    torch.testing.assert_close(clipped_importance(rho.detach(), advantage, clip), expected)
