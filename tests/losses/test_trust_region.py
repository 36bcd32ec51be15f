from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from algorithm.distributions import Categorical
from algorithm.losses import surrogate_loss, trust_region_multiplier
from tests.oracles import close as assert_close
from tests.oracles import tensor

close = partial(assert_close, atol=1e-6)
PI, AVERAGE = (0.7, 0.2, 0.1), (0.4, 0.4, 0.2)


def directions(pi, average, action, advantage):
    """Return g and k of one row in both spaces: the gradients of A log pi(a) and of KL[average || pi]."""
    policy, average = Categorical(tensor(*pi).log()), Categorical(tensor(*average).log())
    weight = torch.zeros(3).double()
    weight[action] = advantage
    return {
        "logits": (policy.summed_score(weight), policy.kl_gradient(average)),
        "probs": (policy.score_wrt_probs(weight), policy.kl_gradient_wrt_probs(average)),
    }


def step_in_logits(pi, average, action, advantage, space, delta=1.0):
    """Return the step in the logits after the projection in `space`."""
    spaces = directions(pi, average, action, advantage)
    gradient, kl_gradient = spaces["logits"]
    return gradient - trust_region_multiplier(*spaces[space], delta) * kl_gradient


def project_gradient(gradient, kl_gradient, delta):
    """Return z of Eq. 12."""
    return gradient - trust_region_multiplier(gradient, kl_gradient, delta) * kl_gradient


def test_known_answers_for_a_step_away_from_the_average():
    spaces = directions(PI, AVERAGE, 0, 20.0)
    gradient, kl_gradient = spaces["logits"]
    close(kl_gradient @ gradient, tensor(2.8)[0])
    close(trust_region_multiplier(gradient, kl_gradient, 1.0), tensor(1.8 / 0.14))
    close(project_gradient(gradient, kl_gradient, 1.0), tensor(2.142857, -1.428571, -0.714286))

    gradient, kl_gradient = spaces["probs"]  # never active if the advantage is positive
    close(kl_gradient @ gradient, tensor(-16.326531)[0])
    assert project_gradient(gradient, kl_gradient, 1.0).equal(gradient)


def test_known_answers_for_a_negative_advantage_of_an_unlikely_action():
    spaces = directions(PI, AVERAGE, 2, -0.5)
    gradient, kl_gradient = spaces["logits"]
    close(kl_gradient @ gradient, tensor(0.13)[0])
    assert project_gradient(gradient, kl_gradient, 1.0).equal(gradient)

    gradient, kl_gradient = spaces["probs"]
    close(kl_gradient @ gradient, tensor(10)[0])
    close(trust_region_multiplier(gradient, kl_gradient, 1.0), tensor(1.080882))
    close(step_in_logits(PI, AVERAGE, 2, -0.5, "probs"), tensor(0.025735, 0.316176, -0.341912))


def test_at_the_average_policy_the_step_is_the_gradient_in_every_space():
    spaces = directions(AVERAGE, AVERAGE, 2, -5.0)
    # Active, along a direction that does not change the policy.
    close(trust_region_multiplier(*spaces["probs"], 1.0), tensor(8))
    for space in spaces:
        close(step_in_logits(AVERAGE, AVERAGE, 2, -5.0, space), spaces["logits"][0], atol=1e-12)


vectors = arrays.arrays("float64", 4, elements=st.floats(-1e3, 1e3))
many = settings(max_examples=200, deadline=None, derandomize=True)


@many
@given(vectors, vectors, st.floats(0, 10))
def test_the_projection_is_feasible_and_the_nearest_such_point(gradient, kl_gradient, delta):
    g, k = torch.from_numpy(gradient), torch.from_numpy(kl_gradient)
    z, kappa = project_gradient(g, k, delta), trust_region_multiplier(g, k, delta)
    room = 1e-9 * (1 + (g * k).abs().sum())
    assert k @ z <= delta + room
    # The conditions of Karush, Kuhn and Tucker: z = g - kappa k, kappa >= 0, and 0 if the constraint is not active.
    assert kappa >= 0
    torch.testing.assert_close(z, g - kappa * k)
    if k @ g <= delta:
        assert z.equal(g)
    elif k @ k > 1e-12:
        assert (k @ z - delta).abs() <= room


def test_without_a_kl_gradient_the_step_is_the_gradient():
    for dtype in (torch.float32, torch.float64):
        gradient = torch.tensor([[1.0, -2.0], [1e30, 3.0]], dtype=dtype)
        assert project_gradient(gradient, torch.zeros_like(gradient), 0.0).equal(gradient)


@pytest.mark.parametrize("size", [1e-15, 1e-25])
def test_a_vanishing_kl_gradient_stays_finite_in_float32(size):
    gradient, kl_gradient = torch.tensor([1.0, -2.0]), torch.tensor([size, -size])
    assert project_gradient(gradient, kl_gradient, 0.0).isfinite().all()


def test_the_gradient_of_the_surrogate_loss_is_minus_the_direction():
    statistics, direction = torch.zeros(2, 3).requires_grad_(), torch.tensor([[1.0, -2.0, 0.5], [0.0, 3.0, 1.0]])
    (gradient,) = torch.autograd.grad(surrogate_loss(direction, statistics), statistics)
    assert gradient.equal(-direction)
