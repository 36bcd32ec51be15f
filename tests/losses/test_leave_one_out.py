from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from algorithm.losses import leave_one_out
from tests.oracles import tensor

MAX_ACTIONS = 6
BETAS = {
    "one": torch.ones_like,
    "inverse": lambda mu: 1 / mu,
    "truncated": lambda mu: (1 / mu).clamp(max=3),
}


def estimate(q, return_taken, action, beta):
    """Return the estimate [A] of the gradient with respect to the probabilities for one row."""
    return leave_one_out(q, return_taken, torch.tensor([action]), beta)


def wrt_logits(pi, gradient):
    """Return the gradient with respect to the logits, given that with respect to the probabilities, by autograd."""
    logits = pi.log().requires_grad_()
    (result,) = torch.autograd.grad((logits.softmax(-1) * gradient).sum(), logits)
    return result


def expected_estimate(mu, q, q_pi, beta):
    """Return the mean of the estimate over the actions of mu, whose returns are exact."""
    return sum(mu[a] * estimate(q, q_pi[a], a, beta[a]) for a in range(len(mu)))


PI, MU = tensor(0.5, 0.3, 0.2), tensor(0.2, 0.5, 0.3)
Q, Q_PI = tensor(1, 0, 2), tensor(2, -1, 0.5)
EXACT = tensor(0.6, -0.54, -0.06)


def test_the_exact_gradient_of_the_known_answers():
    torch.testing.assert_close(wrt_logits(PI, Q_PI), EXACT, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("beta", "expected"),
    [("inverse", EXACT), ("one", tensor(0.22, -0.378, 0.158)), ("truncated", tensor(0.485, -0.489, 0.004))],
)
def test_known_answers_of_the_mean(beta, expected):
    mean = expected_estimate(MU, Q, Q_PI, BETAS[beta](MU))
    torch.testing.assert_close(wrt_logits(PI, mean), expected, rtol=0, atol=1e-12)


def test_known_answer_of_one_sample():
    gradient = wrt_logits(PI, estimate(Q, tensor(-1)[0], 1, tensor(1)[0]))
    torch.testing.assert_close(gradient, tensor(0.2, -0.48, 0.28), rtol=0, atol=1e-12)


def test_each_row_of_a_batch_has_its_own_action_return_and_weight():
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(4, 5, 3, generator=generator, dtype=torch.float64)
    return_taken, beta = torch.rand(2, 4, 5, generator=generator, dtype=torch.float64)
    taken = torch.randint(3, (4, 5, 1), generator=generator)
    result, before = leave_one_out(q, return_taken, taken, beta), q.clone()
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
    plain, shifted = (
        wrt_logits(pi, expected_estimate(mu, q + shift, q_pi + shift, 1 / mu)) for shift in (0.0, baseline)
    )
    torch.testing.assert_close(plain, shifted, rtol=0, atol=1e-9)
