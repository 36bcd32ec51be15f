from dataclasses import replace

import pytest
import torch
from torch import nn

from algorithm.training.optimizers import Adam, OptimizerStep, RmsProp, compute_rate_scale, make_optimizer
from tests.builders import make_acer

CPU = torch.device("cpu")


def follow(optimizer, reference, steps=50):
    """Return the parameters of both optimizers after some steps on random gradients of different sizes."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(7, generator=generator)
    ours, theirs = start.clone(), start.clone().requires_grad_()
    reference, scale = reference(theirs), 10.0 ** torch.arange(-4, 3)
    for step in range(steps):
        gradient = scale * torch.randn(7, generator=generator)
        rate = 0.3 / (1 + step)
        theirs.grad, reference.param_groups[0]["lr"] = gradient.clone(), rate
        reference.step()
        optimizer.step(ours, gradient, rate)
    assert (ours - start).abs().min() > 1e-3
    return ours, theirs.detach()


@pytest.mark.parametrize("epsilon", [1e-8, 1e-2])
def test_adam_equals_torchs_adam(epsilon):
    ours, theirs = follow(Adam(7, CPU, 0.98, epsilon), lambda x: torch.optim.Adam([x], betas=(0.9, 0.98), eps=epsilon))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_adamw_equals_torchs_adamw(weight_decay):
    ours, theirs = follow(
        Adam(7, CPU, 0.98, 1e-8, 0.8, weight_decay),
        lambda x: torch.optim.AdamW([x], betas=(0.8, 0.98), weight_decay=weight_decay),
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_weights_that_are_not_trained_do_not_decay():
    module = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    module[0].weight.requires_grad_(False)
    group = replace(make_acer().groups["acer"], module=module, optimizer="adamw", weight_decay=0.5)
    vector = torch.ones(13)
    make_optimizer(group, 13, CPU).step(vector, torch.zeros(13), 0.1)
    assert vector.tolist() == pytest.approx([1.0] * 6 + [0.95] * 7)


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
    group = replace(make_acer().groups["acer"], learning_rate_schedule=schedule, learning_rate_final_fraction=final)
    assert [compute_rate_scale(group, progress) for progress in (0, 0.25, 0.5, 1)] == pytest.approx(expected)


@pytest.mark.parametrize("epsilon", [1e-8, 1e-2])
def test_rmsprop_with_epsilon_outside_of_the_root_equals_torchs_rmsprop(epsilon):
    ours, theirs = follow(
        RmsProp(7, CPU, 0.99, epsilon, epsilon_inside=False), lambda x: torch.optim.RMSprop([x], eps=epsilon)
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("inside", "expected"), [(False, 0.66667), (True, 0.84383)])
def test_rmsprop_with_epsilon_outside_and_inside_of_the_root(inside, expected):
    optimizer, number = RmsProp(1, CPU, 0.99, 0.1, inside), torch.ones(1)
    optimizer.step(number, torch.tensor([0.5]), 0.1)
    assert optimizer.moments.item() == pytest.approx(0.0025)
    assert number.item() == pytest.approx(expected, abs=5e-6)


@pytest.mark.parametrize("name", ["adam", "adamw", "rmsprop"])
def test_moments_are_the_whole_state_of_an_optimizer(name):
    group = replace(make_acer().groups["acer"], optimizer=name)
    generator = torch.Generator().manual_seed(0)
    optimizer, other = make_optimizer(group, 3, CPU), make_optimizer(group, 3, CPU)
    vector = torch.randn(3, generator=generator)
    for _ in range(3):
        optimizer.step(vector, torch.randn(3, generator=generator), 0.1)
    other.moments.copy_(optimizer.moments)
    copy, gradient = vector.clone(), torch.randn(3, generator=generator)
    optimizer.step(vector, gradient, 0.1)
    other.step(copy, gradient, 0.1)
    assert copy.equal(vector) and other.moments.equal(optimizer.moments)


def test_adam_takes_beta1_from_its_group():
    group = replace(make_acer(optimizer_beta1=0.5).groups["acer"], optimizer_epsilon=1e-8)
    ours, theirs = follow(
        make_optimizer(group, 7, CPU), lambda x: torch.optim.Adam([x], betas=(0.5, group.optimizer_decay), eps=1e-8)
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_group_names_its_optimizer():
    group = make_acer().groups["acer"]
    made = make_optimizer(replace(group, optimizer="rmsprop", optimizer_epsilon=0.1, epsilon_inside=True), 1, CPU)
    assert isinstance(made, RmsProp) and made.epsilon_inside and made.epsilon == 0.1
    made = make_optimizer(replace(group, optimizer="adam"), 1, CPU)
    assert isinstance(made, Adam) and made.weight_decay is None
    made = make_optimizer(replace(group, optimizer="adamw", weight_decay=0.3), 1, CPU)
    assert isinstance(made, Adam) and made.weight_decay == 0.3
    with pytest.raises(ValueError, match="adam, adamw and rmsprop"):
        make_optimizer(replace(group, optimizer="sgd"), 1, CPU)


@pytest.mark.parametrize("checks_first", [True, False])
@pytest.mark.parametrize("max_grad_norm", [1.0, 100.0])
def test_the_metrics_of_a_step_are_the_rate_and_the_norm_before_clipping(checks_first, max_grad_norm):
    group = replace(
        make_acer().groups["acer"], learning_rate=0.5, learning_rate_schedule="linear", max_grad_norm=max_grad_norm
    )
    gradient = torch.tensor([3.0, 0, 0, -4])
    step = OptimizerStep(
        name="auxiliary/curiosity",
        group=group,
        vector=torch.zeros(4),
        gradient=gradient,
        optimizer=make_optimizer(group, 4, CPU),
    )
    step.clip(checks_first)
    assert torch.linalg.vector_norm(gradient) == pytest.approx(min(5.0, max_grad_norm))
    metrics = {name: value.item() for name, value in step.compute_metrics(0.25).items()}
    assert metrics == {"train/curiosity_learning_rate": 0.375, "train/curiosity_gradient_norm": 5.0}
