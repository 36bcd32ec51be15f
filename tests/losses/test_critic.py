"""Losses of critics, and the value of a state under maximum entropy."""

import math

import torch

from algorithm.losses import clipped_error, soft_state_value, squared_error
from tests.oracles import tensor


def close(actual, expected, atol=1e-6):
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=torch.float64), rtol=0, atol=atol)


def test_squared_error_is_half_the_square_and_its_gradient_is_value_minus_target():
    target, value = torch.tensor([4.7, 1.0]).double(), torch.tensor([1.0, 3.0]).double().requires_grad_()
    error = squared_error(target, value)
    torch.testing.assert_close(error, torch.tensor([6.845, 2.0]).double())
    (gradient,) = torch.autograd.grad(error.sum(), value)
    torch.testing.assert_close(gradient, value.detach() - target)


def descent_direction(target, value, target_value, clip):
    """Return the negative gradient of the loss by autograd."""
    value = value.clone().requires_grad_()
    near = target_value + (value - target_value).clamp(-clip, clip)
    loss = torch.maximum((target - value).square(), (target - near).square()) / 2
    return -torch.autograd.grad(loss.sum(), value)[0]


def test_the_clipped_error_is_the_negative_gradient_of_the_larger_of_two_losses():
    target, value, target_value = torch.randn(3, 10000, generator=torch.Generator().manual_seed(0)).double()
    found = clipped_error(target, value, target_value, 0.5)
    torch.testing.assert_close(found, descent_direction(target, value, target_value, 0.5), rtol=0, atol=1e-12)
    assert 0.05 < (found == 0).double().mean() < 0.5


def test_within_the_clip_rounding_does_not_change_the_error():
    target, value, target_value = torch.randn(3, 10000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(clipped_error(target, value, target_value, 100.0), target - value)


PI, ALPHA = tensor(0.6, 0.3, 0.1), 0.2
FIRST, SECOND = tensor(1, 2, 3), tensor(1.5, 1, 4)  # two critics
ENTROPY = 0.897946


def test_known_targets_of_sampled_actions():
    """With one sampled action K is 1. After a termination the target is the reward; a truncation bootstraps."""
    q, log_prob = torch.minimum(tensor(2, 0.5), tensor(1.5, 0.7)), tensor(-1, 0.5)
    v = soft_state_value(torch.ones(2, 1).double(), q.unsqueeze(-1), ALPHA * log_prob.unsqueeze(-1))
    close(tensor(1, -1) + 0.99 * tensor(1, 0) * v, [2.683, -1])
    close(tensor(1, -1) + 0.99 * tensor(1, 1) * v, [2.683, -0.604])


def test_known_values_of_discrete_actions():
    close(soft_state_value(PI, torch.minimum(FIRST, SECOND), ALPHA * PI.log()), 1.379589)
    close(soft_state_value(PI, (FIRST + SECOND) / 2, ALPHA * PI.log()), 1.729589)
    close(soft_state_value(PI, tensor(0, 0, 0), PI.log()), ENTROPY)


def test_the_value_of_hybrid_actions_includes_both_entropies():
    """V = sum_d pi(d) (Q(d, c_d) - alpha_d log pi(d) - alpha_c log pi(c_d|d)), summed by hand."""
    q, log_d, log_c = tensor(2, -1), tensor(0.25, 0.75).log(), tensor(-0.5, 1.5)
    expected = 0.25 * (2 + 0.3 * math.log(4) + 0.1 * 0.5) + 0.75 * (-1 + 0.3 * math.log(4 / 3) - 0.1 * 1.5)
    close(soft_state_value(log_d.exp(), q, 0.3 * log_d + 0.1 * log_c), expected)


def slope(logits, q):
    logits = logits.clone().requires_grad_()
    log_prob = logits.log_softmax(-1)
    return torch.autograd.grad(-soft_state_value(log_prob.exp(), q, ALPHA * log_prob), logits)[0]


def test_the_gradient_is_0_at_the_softmax_of_q_over_alpha_and_leads_there_from_the_uniform_policy():
    close(slope(FIRST / ALPHA, FIRST), [0, 0, 0], atol=1e-12)
    close(slope(FIRST / ALPHA + 7, FIRST), [0, 0, 0], atol=1e-12)
    uniform = slope(tensor(0, 0, 0), FIRST)
    assert uniform[0] > 0 > uniform[2]  # gradient descent: less of the worst action, more of the best
