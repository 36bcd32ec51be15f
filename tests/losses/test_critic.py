import torch

from algorithm.losses import clipped_error, squared_error


def test_squared_error_is_half_the_square_and_pulls_the_value_to_the_target():
    target, value = torch.tensor([4.7, 1.0]).double(), torch.tensor([1.0, 3.0]).double().requires_grad_()
    error = squared_error(target, value)
    torch.testing.assert_close(error, torch.tensor([6.845, 2.0]).double())
    (gradient,) = torch.autograd.grad(error.sum(), value)
    torch.testing.assert_close(gradient, value.detach() - target)


def climbed(target, value, lagging, clip):
    """By autograd of the loss as it is written."""
    value = value.clone().requires_grad_()
    near = lagging + (value - lagging).clamp(-clip, clip)
    loss = torch.maximum((target - value).square(), (target - near).square()) / 2
    return -torch.autograd.grad(loss.sum(), value)[0]


def test_the_clipped_error_is_what_the_value_climbs_on_the_larger_of_two_losses():
    target, value, lagging = torch.randn(3, 10000, generator=torch.Generator().manual_seed(0)).double()
    found = clipped_error(target, value, lagging, 0.5)
    torch.testing.assert_close(found, climbed(target, value, lagging, 0.5), rtol=0, atol=1e-12)
    assert 0.05 < (found == 0).double().mean() < 0.5


def test_within_reach_the_error_is_whole_whatever_was_rounded():
    target, value, lagging = torch.randn(3, 10000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(clipped_error(target, value, lagging, 100.0), target - value)
