"""Weights of policy gradients: truncated importance with bias correction, PPO's clipped weight, leave-one-out."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from algorithm import losses
from algorithm.distributions import Categorical
from tests.oracles import tensor

CLIPS = [0.0, 1.0, 3.0, 1e9]


def policy_gradient(pi, mu, q, action, target, clip):
    """Return the gradient of Eq. 9 with respect to the logits [A] of one row."""
    policy = Categorical(pi.log())
    v = policy.expectation(q)
    weight = losses.bias_correction(pi, mu, q - v, clip)
    weight[action] += losses.truncated_importance(pi[action] / mu[action], target - v, clip)
    return policy.summed_score(weight)


def expected_gradient(pi, mu, q, clip):
    """Return the mean over the actions of mu, with an exact critic."""
    return sum(mu[a] * policy_gradient(pi, mu, q, a, q[a], clip) for a in range(len(mu)) if mu[a] > 0)


def wrt_logits(pi, gradient):
    """Return the gradient with respect to the logits, given that with respect to the probabilities, by autograd."""
    logits = pi.log().requires_grad_()
    (result,) = torch.autograd.grad((logits.softmax(-1) * gradient).sum(), logits)
    return result


PI, MU, Q = tensor(0.7, 0.2, 0.1), tensor(0.05, 0.45, 0.5), tensor(1, 2, -1)


def test_known_answers_of_both_terms():
    torch.testing.assert_close(losses.truncated_importance(PI[0] / MU[0], tensor(1.5)[0], 5.0), tensor(7.5)[0])
    torch.testing.assert_close(losses.bias_correction(PI, MU, torch.ones(3).double(), 5.0), tensor(0.45, 0, 0))
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
        torch.testing.assert_close(expected_gradient(pi, mu, q, clip), wrt_logits(pi, q), rtol=0, atol=1e-10)


def test_truncation_alone_is_biased():
    policy, q = Categorical(PI.log()), tensor(3, 2, -1)
    weight = MU * losses.truncated_importance(PI / MU, q - policy.expectation(q), 3.0)
    assert not torch.allclose(policy.summed_score(weight), wrt_logits(PI, q), atol=1e-2)


def test_the_correction_includes_actions_with_mu_0():
    mu = tensor(0.5, 0, 0.5)
    for clip in (0.0, 1.0, 3.0):
        torch.testing.assert_close(expected_gradient(PI, mu, Q, clip), wrt_logits(PI, Q), rtol=0, atol=1e-10)


@pytest.mark.parametrize("clip", [1.0, 10.0])
def test_on_policy_there_is_no_correction(clip):
    assert losses.bias_correction(PI, PI, Q - 1, clip).eq(0).all()
    assert losses.truncated_importance(torch.ones(3).double(), Q, clip).eq(Q).all()


def test_without_truncation_there_is_no_correction():
    assert losses.bias_correction(PI, MU, Q - 1, 1e9).eq(0).all()


def test_known_answers_of_the_sampled_correction():
    """[1 - c / rho]_+ A is 0 up to rho = c, and close to the advantage for large rho."""
    corrected = losses.sampled_bias_correction(tensor(0.5, 5, 10, 1e6), tensor(3, 3, 3, -2), 5.0)
    torch.testing.assert_close(corrected, tensor(0, 0, 1.5, -1.99999))


@pytest.mark.parametrize("clip", [0.5, 1.0, 3.0])
def test_the_mean_of_the_sampled_correction_equals_the_correction_of_all_actions(clip):
    mean = (PI * losses.sampled_bias_correction(PI / MU, Q - 1, clip)).sum()
    torch.testing.assert_close(mean, losses.bias_correction(PI, MU, Q - 1, clip).sum())


def test_known_answers_of_the_clipped_weight():
    rho = tensor(0.7, 0.9, 1.1, 1.3)
    torch.testing.assert_close(losses.clipped_importance(rho, tensor(2, 2, 2, 2), 0.2), tensor(1.4, 1.8, 2.2, 0))
    torch.testing.assert_close(losses.clipped_importance(rho, tensor(-2, -2, -2, -2), 0.2), tensor(0, -1.8, -2.2, -2.6))
    assert losses.clipped_importance(rho, tensor(0, 0, 0, 0), 0.2).eq(0).all()


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
    torch.testing.assert_close(losses.clipped_importance(rho.detach(), advantage, clip), expected)


MAX_ACTIONS = 6
BETAS = {"one": torch.ones_like, "inverse": lambda mu: 1 / mu, "truncated": lambda mu: (1 / mu).clamp(max=3)}


def estimate(q, return_taken, action, beta):
    """Return the estimate [A] of the gradient with respect to the probabilities for one row."""
    return losses.leave_one_out(q, return_taken, torch.tensor([action]), beta)


def expected_estimate(mu, q, q_pi, beta):
    """Return the mean of the estimate over the actions of mu, whose returns are exact."""
    return sum(mu[a] * estimate(q, q_pi[a], a, beta[a]) for a in range(len(mu)))


# The leave-one-out estimate of another policy, whose critic is not exact.
LOO_PI, LOO_MU = tensor(0.5, 0.3, 0.2), tensor(0.2, 0.5, 0.3)
LOO_Q, Q_PI = tensor(1, 0, 2), tensor(2, -1, 0.5)
EXACT = tensor(0.6, -0.54, -0.06)


def test_the_exact_gradient_of_the_known_answers():
    torch.testing.assert_close(wrt_logits(LOO_PI, Q_PI), EXACT, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("beta", "expected"),
    [("inverse", EXACT), ("one", tensor(0.22, -0.378, 0.158)), ("truncated", tensor(0.485, -0.489, 0.004))],
)
def test_known_answers_of_the_mean(beta, expected):
    mean = expected_estimate(LOO_MU, LOO_Q, Q_PI, BETAS[beta](LOO_MU))
    torch.testing.assert_close(wrt_logits(LOO_PI, mean), expected, rtol=0, atol=1e-12)


def test_known_answer_of_one_sample():
    gradient = wrt_logits(LOO_PI, estimate(LOO_Q, tensor(-1)[0], 1, tensor(1)[0]))
    torch.testing.assert_close(gradient, tensor(0.2, -0.48, 0.28), rtol=0, atol=1e-12)


def test_each_row_of_a_batch_has_its_own_action_return_and_weight():
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(4, 5, 3, generator=generator, dtype=torch.float64)
    return_taken, beta = torch.rand(2, 4, 5, generator=generator, dtype=torch.float64)
    taken = torch.randint(3, (4, 5, 1), generator=generator)
    result, before = losses.leave_one_out(q, return_taken, taken, beta), q.clone()
    for t in range(4):
        for b in range(5):
            expected = q[t, b].clone()
            expected[taken[t, b]] += beta[t, b] * (return_taken[t, b] - q[t, b, taken[t, b]])
            torch.testing.assert_close(result[t, b], expected)
    assert q.equal(before)


@st.composite
def bandits(draw):
    """Draw pi, mu, Q and Q^pi of a bandit."""
    actions = draw(st.integers(2, MAX_ACTIONS))
    weights = st.lists(st.floats(0.02, 1), min_size=actions, max_size=actions)
    values = st.lists(st.floats(-10, 10), min_size=actions, max_size=actions)
    pi, mu = (tensor(*draw(weights)) for _ in range(2))
    return pi / pi.sum(), mu / mu.sum(), tensor(*draw(values)), tensor(*draw(values))


@given(bandits(), st.sampled_from(sorted(BETAS)))
def test_the_bias_is_that_of_proposition_1(bandit, name):
    pi, mu, q, q_pi = bandit
    beta = BETAS[name](mu)
    mean, exact = wrt_logits(pi, expected_estimate(mu, q, q_pi, beta)), wrt_logits(pi, q_pi)
    bias = wrt_logits(pi, (1 - mu * beta) * (q - q_pi))
    torch.testing.assert_close(mean - exact, bias, rtol=0, atol=1e-10)
    if name == "inverse":
        torch.testing.assert_close(mean, exact, rtol=0, atol=1e-10)


@given(bandits(), st.floats(0, 20))
def test_an_exact_critic_has_no_bias_with_any_beta(bandit, beta):
    pi, mu, _, q_pi = bandit
    mean = expected_estimate(mu, q_pi, q_pi, torch.full_like(mu, beta))
    torch.testing.assert_close(wrt_logits(pi, mean), wrt_logits(pi, q_pi), rtol=0, atol=1e-10)


@given(bandits(), st.floats(-10, 10))
def test_a_baseline_of_the_values_has_no_effect(bandit, baseline):
    pi, mu, q, q_pi = bandit
    plain, shifted = (wrt_logits(pi, expected_estimate(mu, q + by, q_pi + by, 1 / mu)) for by in (0.0, baseline))
    torch.testing.assert_close(plain, shifted, rtol=0, atol=1e-9)
