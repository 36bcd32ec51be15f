"""The natural step: known answers of one state, conjugate gradients, and the Fisher matrix against autograd."""

from functools import partial

import pytest
import torch
from torch import nn

from algorithm.agents.agent import Divergence, ParameterGroup
from algorithm.distributions import (
    Categorical,
    ClippedGaussianFamily,
    FixedStdGaussian,
    FlattenedFamily,
    Gaussian,
    make_family,
)
from algorithm.training.optimizers import FisherMatrix, NaturalStep, conjugate_gradient, solve_trust_region
from tests.oracles import close as close_to
from tests.oracles import tensor

close = partial(close_to, atol=5e-6)
LOGITS, ACTION, ADVANTAGE, DELTA = (0.2, 0.0, -0.2), 2, 3.0, 0.01
DAMPING = 1e-9  # the Fisher matrix of logits is singular: equal changes of all logits have no effect
FAMILIES = {
    "discrete": make_family(0, (4,), ClippedGaussianFamily, Gaussian),
    "branches": make_family(0, (3, 2), ClippedGaussianFamily, Gaussian),
    "flattened": FlattenedFamily((3, 2)),
    "continuous": make_family(2, (), ClippedGaussianFamily, Gaussian),
    "fixed std": make_family(2, (), ClippedGaussianFamily, FixedStdGaussian),
    "hybrid": make_family(1, (3, 2), ClippedGaussianFamily, Gaussian),
}


class OneState(nn.Module):
    """A policy with one state, whose parameters are its logits."""

    def __init__(self, logits=LOGITS):
        super().__init__()
        self.logits = nn.Parameter(tensor(*logits))

    def compute_policy(self):
        return Categorical(self.logits.view(1, 1, -1))


ONE_ROW = torch.ones(1, 1, dtype=torch.float64)


def make_step(module, average_probs, gradient=None, max_halvings=10):
    """Return a natural step of a policy with one state, and a function that measures the divergence that it limits."""
    group = ParameterGroup(
        module=module,
        learning_rate=DELTA,
        optimizer="natural",
        max_grad_norm=1.0,
        damping=DAMPING,
        max_halvings=max_halvings,
    )
    average = Categorical(average_probs.log().view(1, 1, -1))
    divergence = Divergence(compute_policy=module.compute_policy, average=average, weights=ONE_ROW)
    gradient = policy_gradient() if gradient is None else gradient
    step = NaturalStep(
        name="policy", group=group, vector=module.logits.data, gradient=-gradient, compute_divergence=lambda: divergence
    )
    return step, lambda: module.compute_policy().kl(average).item()


def policy_gradient():
    """Return the gradient of A log pi(a) with respect to the logits."""
    return ADVANTAGE * (torch.eye(3, dtype=torch.float64)[ACTION] - tensor(*LOGITS).softmax(-1))


def take_step(average_probs, gradient=None, delta=DELTA, **changes):
    """Return the change of the logits by one step, the divergences before and after it, and its metrics."""
    module = OneState()
    step, measure = make_step(module, average_probs, gradient, **changes)
    before, start = measure(), module.logits.detach().clone()
    assert step.step(delta)
    metrics = {name: value.item() for name, value in step.compute_metrics(0.0).items()}
    return module.logits.detach() - start, before, measure(), metrics


def solve(average_probs):
    """Return the step of the quadratic model around the average policy, the natural gradient, and C."""
    module = OneState()
    policy, average = module.compute_policy(), Categorical(average_probs.log().view(1, 1, -1))
    fisher = FisherMatrix(policy, ONE_ROW, [module.logits], DAMPING)
    g, k = policy_gradient(), policy.kl_gradient(average).detach().flatten()
    u, w = (conjugate_gradient(fisher, right_side, 10) for right_side in (g, k))
    c = policy.kl(average).detach()[0, 0]
    step = solve_trust_region(g, k, u, w, c, DELTA)
    close(c + k @ step + step @ fisher(step) / 2, tensor(DELTA)[0], atol=1e-10)
    return step, u, c


def test_around_the_current_policy_the_step_is_that_of_trpo():
    step, u, c = solve(tensor(*LOGITS).softmax(-1))
    close(c, tensor(0.0)[0])
    close(step, tensor(-0.10627, -0.10627, 0.21254))
    close(step, (2 * DELTA / (policy_gradient() @ u)).sqrt() * u, atol=1e-7)

    policy, moved = Categorical(tensor(*LOGITS)), Categorical(tensor(*LOGITS) + step)
    close(moved.kl(policy), tensor(0.010472)[0], atol=5e-7)  # above delta, so that the step is halved
    taken, before, after, metrics = take_step(tensor(*LOGITS).softmax(-1))
    close(taken, step / 2)
    assert before == pytest.approx(0, abs=1e-15) and after < DELTA
    assert metrics["train/step_halvings"] == 1 and metrics["train/accepted_steps"] == 1
    assert metrics["train/kl_after_step"] == pytest.approx(after)


def test_known_answers_around_an_average_policy():
    average = tensor(0.35, 0.33, 0.32)
    step, _, c = solve(average)
    close(c, tensor(0.007986)[0], atol=5e-7)
    close(Categorical(tensor(*LOGITS) + step).kl(Categorical(average.log())), tensor(0.012424)[0], atol=5e-7)
    taken, before, after, metrics = take_step(average)
    close(taken, step / 2)
    assert before == pytest.approx(0.007986, abs=5e-7) and after == pytest.approx(0.000693, abs=5e-7)
    assert metrics["train/step_halvings"] == 1


def test_a_policy_outside_of_the_trust_region_moves_towards_the_average_policy():
    average = tensor(0.6, 0.3, 0.1)
    _, before, _, _ = take_step(average)
    taken, before, after, metrics = take_step(average, delta=before / 10)
    assert metrics["train/accepted_steps"] == 1
    assert after < before
    distance = average.log() - tensor(*LOGITS)
    distance = distance - distance.mean()
    assert torch.cosine_similarity(taken, distance, dim=0) > 0.9


@pytest.mark.parametrize("share", [0.1, 2.0])
def test_without_a_gradient_the_policy_moves_only_from_outside_of_the_trust_region(share):
    average = tensor(0.35, 0.33, 0.32)
    taken, before, after, _ = take_step(average, torch.zeros(3, dtype=torch.float64), delta=0.007986 * share)
    if share > 1:
        assert taken.eq(0).all() and after == before
    else:
        assert after < before / 10


def test_a_limit_of_0_at_the_average_policy_allows_no_step():
    taken, *_ = take_step(tensor(*LOGITS).softmax(-1), delta=0.0)
    close(taken, tensor(0, 0, 0), atol=1e-7)


def test_the_direction_of_a_large_trust_region_is_the_natural_gradient():
    step, u, _ = solve(tensor(0.35, 0.33, 0.32))
    none = torch.zeros(3).double()
    far = solve_trust_region(policy_gradient(), none, u, none, tensor(0.008)[0], 1e9)
    close(torch.cosine_similarity(far, u, dim=0), tensor(1.0)[0], atol=1e-12)
    assert torch.cosine_similarity(step, u, dim=0) < 0.999


def test_a_step_that_no_halving_brings_into_the_trust_region_is_dropped():
    taken, before, after, metrics = take_step(tensor(*LOGITS).softmax(-1), max_halvings=0)
    assert taken.eq(0).all() and after == before
    assert metrics["train/accepted_steps"] == 0 and metrics["train/kl_after_step"] == after


@pytest.mark.parametrize("place", ["gradient", "policy"])
def test_a_step_that_is_not_finite_changes_nothing_and_is_reported(place):
    module, bad = OneState(), float("nan")
    average = tensor(bad, 0.3, 0.2) if place == "policy" else tensor(0.35, 0.33, 0.32)
    step, _ = make_step(module, average, tensor(bad, 0, 0) if place == "gradient" else tensor(1, 2, 3))
    assert not step.step(DELTA)
    assert module.logits.equal(tensor(*LOGITS))


class TwoLayers(nn.Module):
    """A policy with a hidden layer of 3 units on 5 numbers: 30 parameters for 3 actions, and one without effect."""

    def __init__(self, family, columns):
        super().__init__()
        torch.manual_seed(0)
        self.family = family
        self.layers = nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, columns)).double()
        self.without_effect = nn.Parameter(torch.zeros(1).double())
        self.x, self.weights = torch.randn(6, 4, 5).double(), torch.rand(6, 4).double() / 24

    def compute_policy(self):
        statistics = self.layers(self.x)
        constant = torch.zeros(6, 4, self.family.statistics_size - statistics.shape[-1]).double()  # of a fixed std
        return self.family(torch.cat((statistics, constant), -1))

    def compute_fisher(self):
        """Return the second derivative of the weighted sum of KL[policy || other] by autograd."""
        parameters = list(self.layers.parameters())
        fixed = self.family(self.compute_policy().statistics.detach())
        divergence = (self.weights * self.compute_policy().kl(fixed)).sum()
        gradients = torch.autograd.grad(divergence, parameters, create_graph=True)
        gradient = torch.cat([part.flatten() for part in gradients])
        rows = [torch.autograd.grad(number, parameters, retain_graph=True) for number in gradient]
        return torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])


@pytest.mark.parametrize("name", FAMILIES)
def test_the_product_with_the_fisher_matrix_equals_double_backward_passes(name):
    family = FAMILIES[name]
    net = TwoLayers(family, 2 if name == "fixed std" else family.statistics_size)
    parameters = [*net.layers.parameters(), net.without_effect]
    size = sum(parameter.numel() for parameter in parameters)
    expected = torch.zeros(size, size).double()
    expected[:-1, :-1] = net.compute_fisher()
    fisher = FisherMatrix(net.compute_policy(), net.weights, parameters, damping=0.0)
    found = torch.stack([fisher(row) for row in torch.eye(size).double()])
    close(found, expected, atol=1e-10)
    assert torch.linalg.eigvalsh(found).min() > -1e-12
    vector = torch.randn(size).double()
    damped = FisherMatrix(net.compute_policy(), net.weights, parameters, damping=0.5)
    close(damped(vector), expected @ vector + 0.5 * vector, atol=1e-10)


def test_conjugate_gradients_equal_a_dense_solution():
    net = TwoLayers(make_family(0, (3,), ClippedGaussianFamily, Gaussian), 3)
    fisher = FisherMatrix(net.compute_policy(), net.weights, list(net.layers.parameters()), damping=1e-2)
    right_side = torch.randn(30).double()
    expected = torch.linalg.solve(net.compute_fisher() + 1e-2 * torch.eye(30).double(), right_side)
    close(conjugate_gradient(fisher, right_side, 30), expected, atol=1e-6)
    for scale in (1e-8, 1e8):  # the tolerance is relative
        close(conjugate_gradient(fisher, scale * right_side, 30) / scale, expected, atol=1e-6)


def test_conjugate_gradients_end_at_the_solution():
    calls = []

    def double(vector):
        calls.append(vector)
        return 2 * vector

    close(conjugate_gradient(double, tensor(1, -3), 10), tensor(0.5, -1.5))
    assert len(calls) == 1
    assert conjugate_gradient(double, tensor(0, 0), 10).eq(0).all() and len(calls) == 1
