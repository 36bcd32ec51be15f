"""The optimizers against those of torch, known answers, schedules and metrics."""

from functools import partial

import pytest
import torch
from torch import nn

from algorithm.agents.agent import ParameterGroup
from algorithm.networks import FlatParameters
from algorithm.training.optimizers import Optimizer, make_optimizers


def make_optimizer(size=7, module=None, **settings) -> Optimizer:
    """Return the optimizer of a group with `size` parameters of 1, and some settings."""
    module = module or nn.Linear(size, 1, bias=False)
    parameters = FlatParameters({"auxiliary/curiosity": module}, {}, {})
    parameters.vector.fill_(1.0)
    group = ParameterGroup(module=module, **{"learning_rate": 0.5, "max_grad_norm": 1.0, **settings})
    (optimizer,) = make_optimizers({"auxiliary/curiosity": group}, parameters, None, lambda tensor: tensor)
    return optimizer


@pytest.mark.parametrize(
    ("settings", "reference"),
    [
        ({"optimizer_epsilon": 1e-8}, partial(torch.optim.Adam, betas=(0.9, 0.99))),
        ({"optimizer_epsilon": 1e-2}, partial(torch.optim.Adam, betas=(0.9, 0.99), eps=1e-2)),
        ({"optimizer_beta1": 0.5, "optimizer_decay": 0.98}, partial(torch.optim.Adam, betas=(0.5, 0.98))),
        ({"optimizer": "adamw"}, partial(torch.optim.AdamW, betas=(0.9, 0.99), weight_decay=0.0)),
        ({"optimizer": "adamw", "weight_decay": 0.3}, partial(torch.optim.AdamW, betas=(0.9, 0.99), weight_decay=0.3)),
        ({"optimizer": "rmsprop"}, torch.optim.RMSprop),
        ({"optimizer": "rmsprop", "optimizer_epsilon": 1e-2}, partial(torch.optim.RMSprop, eps=1e-2)),
    ],
    ids=str,
)
def test_optimizers_equal_those_of_torch(settings, reference):
    """After 50 steps on random gradients of different sizes, with a decreasing learning rate."""
    generator, optimizer = torch.Generator().manual_seed(0), make_optimizer(**settings)
    theirs, scale = torch.ones(7, requires_grad=True), 10.0 ** torch.arange(-4, 3)
    torchs = reference([theirs])
    for step in range(50):
        theirs.grad = scale * torch.randn(7, generator=generator)
        optimizer.gradient.copy_(theirs.grad)
        torchs.param_groups[0]["lr"] = rate = 0.3 / (1 + step)
        torchs.step()
        optimizer.step(rate)
    assert (optimizer.vector - 1).abs().min() > 1e-3
    torch.testing.assert_close(optimizer.vector, theirs.detach(), rtol=1e-5, atol=1e-6)


def test_weights_that_are_not_trained_do_not_decay():
    module = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    module[0].weight.requires_grad_(False)
    optimizer = make_optimizer(module=module, optimizer="adamw", weight_decay=0.5)
    optimizer.step(0.1)
    assert optimizer.vector.tolist() == pytest.approx([1.0] * 6 + [0.95] * 7)


@pytest.mark.parametrize(
    ("schedule", "final", "expected"),
    [
        ("constant", 0.0, (1, 1, 1, 1)),
        ("linear", 0.0, (1, 0.75, 0.5, 0)),
        ("linear", 0.5, (1, 0.875, 0.75, 0.5)),
        ("cosine", 0.0, (1, 0.5 + 0.5**1.5, 0.5, 0)),
        ("cosine", 0.5, (1, 0.75 + 0.5**2.5, 0.75, 0.5)),
    ],
)
def test_the_known_rates_of_schedules(schedule, final, expected):
    optimizer = make_optimizer(learning_rate_schedule=schedule, learning_rate_final_fraction=final)
    rates = [optimizer.compute_rate(progress) for progress in (0, 0.25, 0.5, 1)]
    assert rates == pytest.approx([0.5 * fraction for fraction in expected])


@pytest.mark.parametrize(("inside", "expected"), [(False, 0.66667), (True, 0.84383)])
def test_rmsprop_with_epsilon_outside_and_inside_of_the_root(inside, expected):
    optimizer = make_optimizer(1, optimizer="rmsprop", optimizer_epsilon=0.1, epsilon_inside=inside)
    optimizer.gradient.fill_(0.5)
    optimizer.step(0.1)
    assert optimizer.moments.item() == pytest.approx(0.0025)
    assert optimizer.vector.item() == pytest.approx(expected, abs=5e-6)


def test_an_unknown_optimizer_is_an_error():
    with pytest.raises(ValueError, match="optimizer 'sgd' is unknown; there are adam, adamw, rmsprop, natural"):
        make_optimizer(optimizer="sgd")


@pytest.mark.parametrize("checks_first", [True, False])
@pytest.mark.parametrize("max_grad_norm", [1.0, 100.0])
def test_the_metrics_of_a_step_are_the_rate_and_the_norm_before_clipping(checks_first, max_grad_norm):
    optimizer = make_optimizer(4, learning_rate_schedule="linear", max_grad_norm=max_grad_norm)
    optimizer.gradient.copy_(torch.tensor([3.0, 0, 0, -4]))
    optimizer.clip(checks_first)
    torch.testing.assert_close(optimizer.gradient, torch.tensor([3.0, 0, 0, -4]) * min(1.0, max_grad_norm / 5))
    metrics = {name: value.item() for name, value in optimizer.compute_metrics(0.25).items()}
    assert metrics == {"train/curiosity_learning_rate": 0.375, "train/curiosity_gradient_norm": 5.0}
