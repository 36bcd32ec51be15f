import torch

from algorithm.losses import clipped_error, squared_error


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
