import pytest
import torch

from algorithm.networks import Temperature


@pytest.mark.parametrize("learned", [True, False])
def test_it_starts_at_the_given_logarithms(learned):
    temperature = Temperature(2, -2.3, learned)
    torch.testing.assert_close(temperature.alpha(), torch.tensor([-2.3, -2.3]).exp())
    assert temperature.log_alpha.requires_grad == learned and not temperature.alpha().requires_grad


def test_alpha_is_bounded_and_its_learned_logarithm_is_not():
    temperature = Temperature(3, 0.0, True)
    with torch.no_grad():
        temperature.log_alpha.copy_(torch.tensor([-1e4, 1e4, 1.0]))
    torch.testing.assert_close(temperature.alpha(), torch.tensor([-20.0, 5.0, 1.0]).exp())
    assert (temperature.alpha() > 0).all() and temperature.alpha().isfinite().all()
    assert temperature.log_alpha.abs().max() == 1e4


def test_it_follows_its_parameter():
    temperature = Temperature(1, 0.0, True)
    with torch.no_grad():
        temperature.log_alpha.add_(1)
    torch.testing.assert_close(temperature.alpha(), torch.tensor([1.0]).exp())
