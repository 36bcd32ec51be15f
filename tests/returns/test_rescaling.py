import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithm.returns import rescale, unscale


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_known_answers():
    torch.testing.assert_close(
        rescale(tensor(1000.0, -1000.0, 0.0)), tensor(31.638584, -31.638584, 0), rtol=0, atol=1e-6
    )
    behind_five_rewards = rescale(1 + 0.99**5 * unscale(tensor(5.0)))
    torch.testing.assert_close(behind_five_rewards, tensor(4.940760), rtol=0, atol=1e-6)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.floats(-1e6, 1e6))
def test_each_is_the_inverse_of_the_other(x):
    number = tensor(x)
    assert unscale(rescale(number)).item() == pytest.approx(x, rel=1e-6, abs=1e-6)
    assert rescale(unscale(number)).item() == pytest.approx(x, rel=1e-6, abs=1e-6)


def test_each_is_increasing_and_odd():
    x = torch.linspace(-1000, 1000, 999, dtype=torch.float64)
    for function in (rescale, unscale):
        y = function(x)
        assert (y.diff() > 0).all()
        torch.testing.assert_close(function(-x), -y)
    assert rescale(x).abs().max() < 40 < 1e5 < unscale(x).abs().max()


@pytest.mark.parametrize("x", [0.0, 1e-3, 0.1, 1.0, 30.0, 1e4])
def test_float32_is_precise_enough(x):
    for sign in (1, -1):
        y = rescale(torch.tensor([sign * x]))
        assert unscale(y).item() == pytest.approx(sign * x, rel=2e-6, abs=1e-6)


def test_gradients_are_finite_at_0():
    for function in (rescale, unscale):
        x = torch.tensor([0.0, 1e-8, -3.0], dtype=torch.float64, requires_grad=True)
        (found,) = torch.autograd.grad(function(x).sum(), x)
        assert found.isfinite().all()
