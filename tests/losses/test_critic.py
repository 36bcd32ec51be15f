import torch

from algorithm.losses import squared_error


def test_squared_error_is_half_the_square_and_pulls_the_value_to_the_target():
    target, value = torch.tensor([4.7, 1.0]).double(), torch.tensor([1.0, 3.0]).double().requires_grad_()
    error = squared_error(target, value)
    torch.testing.assert_close(error, torch.tensor([6.845, 2.0]).double())
    (gradient,) = torch.autograd.grad(error.sum(), value)
    torch.testing.assert_close(gradient, value.detach() - target)
