"""Adaptive gradients: known answers in a network of two layers, and in a learner."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from algorithm.auxiliaries.auxiliary import Auxiliary
from algorithm.networks import FlatParameters
from algorithm.training.auxiliary_set import Gradients
from algorithm.training.learner import Learner
from tests.builders import make_acer, make_role, random_rollout
from tests.training.test_learner import Loud


class TwoLayers(nn.Module):
    """Two layers and a parameter of its own: y = second(first(x)) + offset, with 1 and 2 values in each layer."""

    def __init__(self):
        super().__init__()
        self.offset = nn.Parameter(torch.zeros(1))
        self.first, self.second = nn.Linear(1, 1), nn.Linear(1, 1)


@pytest.fixture
def flat():
    agent, own = TwoLayers(), nn.Linear(2, 1, bias=False)
    parameters = FlatParameters({"agent": agent, "own": own}, {}, {})
    return agent, own, parameters.gradient


def make_loss(agent: TwoLayers, own: nn.Linear, gradient: list[float]) -> torch.Tensor:
    """Return a loss with this gradient of (offset, first, second, own)."""
    values = torch.cat([parameter.flatten() for parameter in (*agent.parameters(), *own.parameters())])
    return values @ torch.tensor(gradient)


#                 offset  first: w, b   second: w, b    own
TASK = torch.tensor([2.0, 1.0, 1.0, 3.0, 0.0, 0.0, 0.0])


@pytest.mark.parametrize(
    ("auxiliary", "added"),
    [
        # The products with the task's gradient by layer: 2, 0.5, 3; then 2, -0.5, -3; -2, 0, 0.
        ([[1.0, 1.5, -1.0, 1.0, 7.0, 5.0, -6.0]], [1.0, 1.5, -1.0, 1.0, 7.0, 5.0, -6.0]),
        ([[1.0, 0.5, -1.0, -1.0, 7.0, 5.0, -6.0]], [1.0, 0.0, 0.0, 0.0, 0.0, 5.0, -6.0]),
        ([[-1.0, 1.0, -1.0, 0.0, 7.0, 0.0, 1.0]], [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]),
        # Each of two losses is compared with the task's gradient, not with the sum so far.
        ([[9.0, 0, 0, 0, 0, 1.0, 0], [-3.0, 1.0, 1.0, 0, 0, 1.0, 1.0]], [9.0, 1.0, 1.0, 0, 0, 2.0, 1.0]),
    ],
)
def test_a_layer_gets_the_gradients_that_agree_with_the_task_s(flat, auxiliary, added):
    agent, own, gradient = flat
    losses = {str(number): make_loss(agent, own, values) for number, values in enumerate(auxiliary)}
    Gradients([agent], gradient).compute([make_loss(agent, own, TASK.tolist())], losses, losses.keys())
    torch.testing.assert_close(gradient, TASK + torch.tensor(added))


def test_without_a_gradient_of_the_task_only_own_modules_are_trained(flat):
    agent, own, gradient = flat
    Gradients([agent], gradient).compute([], {"own": make_loss(agent, own, [1.0, 1, 1, 1, 1, 2, 3])}, {"own"})
    torch.testing.assert_close(gradient, torch.tensor([0.0, 0, 0, 0, 0, 2, 3]))


class Follow(Loud):
    """An auxiliary whose loss has the gradient of the features that `sign` selects, and that of its own module."""

    shapes_features = True

    def __init__(self, sign: float, adaptive: bool):
        super().__init__(sign)
        self.adaptive = adaptive


def compute_gradient(**auxiliaries: Auxiliary) -> dict[str, torch.Tensor]:
    """Return the gradient of each group, and of each layer of the agent's body."""
    torch.manual_seed(0)
    role = make_role()
    agent = make_acer(role)
    learner = Learner(agent, role, auxiliaries, None)
    for auxiliary in auxiliaries.values():
        nn.init.constant_(auxiliary.module.weight, 0.3)
    learner.compute_gradients(replace(random_rollout(np.random.default_rng(0)), weight=np.ones(4, np.float32)))
    parameters = learner.parameters
    return {name: parameters.gradient[columns].clone() for name, columns in parameters.group_slices.items()}


def test_of_opposite_losses_exactly_one_shapes_each_layer():
    alone = compute_gradient()["acer"]
    differences = {}
    for sign in (1.0, -1.0):
        plain = compute_gradient(follow=Follow(sign, adaptive=False))
        adaptive = compute_gradient(follow=Follow(sign, adaptive=True))
        torch.testing.assert_close(adaptive["auxiliary/follow"], plain["auxiliary/follow"])
        assert plain["auxiliary/follow"].any()
        differences[sign] = plain["acer"] - alone, adaptive["acer"] - alone
    (plain, added), (_, opposite) = differences[1.0], differences[-1.0]
    body = make_acer(make_role()).policy.torso.body
    size = sum(parameter.numel() for parameter in body.parameters())
    agrees = bool(plain[:size] @ alone[:size] > 0)
    torch.testing.assert_close((added if agrees else -opposite)[:size], plain[:size], atol=1e-6, rtol=1e-4)
    assert (opposite if agrees else added)[:size].abs().max() < 1e-6
    assert plain[:size].abs().max() > 1e-3 and added[size:].abs().max() < 1e-6


def test_plain_and_adaptive_losses_add_up():
    alone = compute_gradient()["acer"]
    plain = compute_gradient(follow=Follow(1.0, adaptive=False))["acer"] - alone
    adaptive = compute_gradient(follow=Follow(1.0, adaptive=True))["acer"] - alone
    both = compute_gradient(a=Follow(1.0, adaptive=False), b=Follow(1.0, adaptive=True))
    torch.testing.assert_close(both["acer"], alone + plain + adaptive, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(both["auxiliary/a"], both["auxiliary/b"])
