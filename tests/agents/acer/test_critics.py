"""The critics of ACER: known answers of ratios, targets and the dueling critic; the policy's objective."""

import numpy as np
import pytest
import torch
from torch.distributions import Independent, Normal

from algorithm.agents.acer.critics import ActionAdvantages, ActionValues, StateValues, StochasticDueling
from algorithm.distributions import ClippedGaussianFamily, FixedStdGaussian, Gaussian, make_family
from algorithm.returns import ESTIMATORS, EstimatorInputs, Targets, TraceClipping
from tests.agents.acer.literal import COLUMNS, ROWS, SPECS, make_case

# Two dimensions, means 0 -> (0.3, -0.15), std 0.3.
MEANS, STD = torch.tensor([0.3, -0.15]), 0.3
ACTIONS = torch.tensor([[0.1, 0.2], [0.4, -0.3], [-0.2, 0.1]])


def draw(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(*shape).double() for shape in shapes]


def test_known_ratios_and_targets():
    """Two dimensions, std 0.3, the means change from 0 to (0.3, -0.15)."""
    family = make_family(2, (), ClippedGaussianFamily, FixedStdGaussian)
    log_std = torch.full((3, 2), STD).log()
    policy, behavior = (family(torch.cat((mean.expand(3, 2), log_std), -1)) for mean in (MEANS, 0 * MEANS))
    log_rho = policy.log_prob(ACTIONS) - behavior.log_prob(ACTIONS)
    rho, root = log_rho.exp(), (log_rho / family.dimensions).exp()
    torch.testing.assert_close(rho, torch.tensor([0.535261, 3.347900, 0.232624]), rtol=1e-5, atol=0)
    torch.testing.assert_close(root.clamp(max=1), torch.tensor([0.731616, 1, 0.482311]), rtol=1e-5, atol=0)
    column = {
        "reward": torch.tensor([1.0, 0, 2]),
        "discount": torch.full((3,), 0.9),
        "valid": torch.ones(3, dtype=torch.bool),
        "v": torch.tensor([0.4, 1, 0.8, 3]),
        "q_taken": torch.tensor([0.5, 1.5, 1]),
        "rho": rho,
        "rho_per_dimension": root,
    }
    rows = EstimatorInputs(**{name: value.unsqueeze(-1) for name, value in column.items()}, prob_taken=lambda: rho)
    clipping = TraceClipping(trace_clip=1.0, rho_clip=1.0, trace_lambda=1.0)
    targets, opc = (ESTIMATORS[name].estimate(rows, clipping) for name in ("retrace", "q_lambda"))
    expected = [(2.643485, 2.326095, 4.7), (4.195, 4.05, 4.7), (1.547325, 1.826095, 1.660707)]
    for actual, numbers in zip((targets.q_target, opc.q_target, targets.value_target()), expected, strict=True):
        torch.testing.assert_close(actual.squeeze(-1), torch.tensor(numbers), rtol=1e-5, atol=1e-6)


def test_known_dueling_value_and_gradient_of_its_error():
    """V = 1, A(a) = 0.6, A(u) = (0.2, 0.4, -0.1, 0.5, 0) gives Q = 1.4."""
    advantages, zero = torch.tensor([0.6, 9.0, 0.2, 0.4, -0.1, 0.5, 0.0]).view(-1, 1, 1), torch.zeros(1, 1, 1)
    policy = make_family(1, (), ClippedGaussianFamily, Gaussian)(torch.zeros(2, 1, 2))
    output = StochasticDueling(torch.ones(2, 1, 1), policy, zero, ActionAdvantages(advantages, zero))
    assert output.q_taken.item() == pytest.approx(1.4)
    target = Targets(output.q_taken + 2, lambda: output.v[:-1] + 0.5)
    of_values, of_advantages = output.value_gradient(output.select_target(target) - output.q_taken, target)
    assert of_values.item() == pytest.approx(2.5)
    # The error for the taken action, 0 for a', minus a fifth of it for each u_i.
    np.testing.assert_allclose(of_advantages.flatten(), [2, 0, *[-0.4] * 5], rtol=1e-6)


@pytest.mark.parametrize("kind", [name for name in SPECS if name != "discrete"])
def test_the_mean_of_q_over_the_policy_is_v(kind):
    agent, _ = make_case(SPECS[kind])
    torch.manual_seed(0)
    features = torch.randn(1, 16).double().expand(2, 40_000, 16)
    with torch.no_grad():
        statistics, values = agent.policy.compute_outputs(features).split([agent.family.statistics_size, 1], -1)
        policy = agent.family(statistics)
        sample = policy.select_rows(slice(-1)).draw_samples(1)[0]
        advantages = agent.evaluate_advantages(agent.policy, features, policy, sample)
        q, v = agent.critic(values, policy, sample, advantages).q_taken[0], values[0, 0]
    assert abs(q.mean() - v).item() < 4 * q.std().item() / len(q) ** 0.5


def test_the_policy_has_no_gradient_through_the_samples():
    agent, rollout = make_case(SPECS["box"])
    statistics = torch.randn(ROWS + 1, COLUMNS, 4).double().requires_grad_()
    policy, features = agent.family(statistics.detach()), agent.features(rollout)
    action_advantages = agent.evaluate_advantages(agent.policy, features, policy, rollout.raw_action)
    assert action_advantages.advantages.requires_grad and not action_advantages.policy_sample.requires_grad
    assert torch.autograd.grad(action_advantages.advantages.sum(), statistics, allow_unused=True) == (None,)


def test_on_policy_there_is_no_correction_and_without_truncation_only_the_correction():
    """First mu = pi and c >= 1, then c = 0."""
    statistics, advantages, taken, sample = draw((2, 1, 4), (7, 1, 1), (1, 1, 2), (1, 1, 2))
    policy, weight = make_family(2, (), ClippedGaussianFamily, Gaussian)(statistics), torch.ones(1, 1).double()
    output = StochasticDueling(torch.zeros(2, 1, 1), policy, taken, ActionAdvantages(advantages, sample))
    policy = output.policy
    found = output.policy_gradient(weight, policy, 1.0), output.policy_gradient(0 * weight, policy, 0.0)
    above = (advantages[1] - advantages[2:].mean(0)).view(1, 1)
    expected = policy.score(taken, weight), policy.score(sample, above)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_the_policy_objective_of_action_values_has_the_weights_of_the_paper():
    statistics, mu, q, weight = draw((3, 1, 3), (2, 1, 3), (3, 1, 3), (2, 1))
    family, action, clip = make_family(0, (3,), ClippedGaussianFamily, Gaussian), torch.tensor([[[2.0]], [[0.0]]]), 0.7
    pi, log_pi = statistics[:-1].softmax(-1), statistics[:-1].log_softmax(-1)
    v = (statistics.softmax(-1) * q).sum(-1)[:-1]
    correction = (pi - clip * mu.softmax(-1)).clamp(min=0) * (q[:-1] - v.unsqueeze(-1))
    of_taken = weight * log_pi.gather(-1, action.long()).squeeze(-1)
    assert (correction != 0).any()
    for kind, values, expected in [
        (ActionValues, q, of_taken + (correction * log_pi).sum(-1)),
        (StateValues, q[..., :1], of_taken),
    ]:
        output = kind(values, family(statistics), action.double(), None)
        torch.testing.assert_close(output.policy_objective(weight, family(mu), clip), expected)


def test_the_policy_objective_of_a_stochastic_dueling_critic_corrects_a_sample():
    shapes = (3, 1, 4), (2, 1, 4), (2, 1), (7, 2, 1), (2, 1, 2), (2, 1, 2)
    statistics, mu, weight, advantages, action, sample = draw(*shapes)
    family, clip = make_family(2, (), ClippedGaussianFamily, Gaussian), 0.7
    output = StochasticDueling(torch.zeros(3, 1, 1), family(statistics), action, ActionAdvantages(advantages, sample))
    policy, behavior = (Independent(Normal(each[..., :2], each[..., 2:].exp()), 1) for each in (statistics[:-1], mu))
    rho = (policy.log_prob(sample) - behavior.log_prob(sample)).exp()
    correction = (1 - clip / rho).clamp(min=0) * (advantages[1] - advantages[2:].mean(0))
    assert (correction != 0).any()
    expected = weight * policy.log_prob(action) + correction * policy.log_prob(sample)
    torch.testing.assert_close(output.policy_objective(weight, family(mu), clip), expected)
