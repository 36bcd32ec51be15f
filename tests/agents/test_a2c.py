"""A2C's gradient is that of the textbook's loss, computed row by row and differentiated by autograd."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from algorithm.networks import Blueprint, Lstm, Mlp
from tests.agents import literal
from tests.builders import PassThrough, compute_gradient, make_a2c, make_role, random_rollout_of, to_float64
from tests.oracles import explain_variance


def compute_literal_terms(agent, spec, rollout):
    """Return the terms of the loss of Mnih et al. 2016 (Algorithm S3): policy, critic, entropy; targets and values."""
    statistics, v = literal.compute_outputs_by_step(agent, rollout, literal.ROWS + 1)
    target = literal.estimate_by_definition(rollout, v, agent.settings.gae_lambda)
    statistics, v = statistics[:-1], v[:-1]
    advantage = target - v.detach()
    if agent.settings.normalize_advantages:
        advantage = literal.normalize(advantage, rollout.valid)
    policy = literal.compute_log_prob(spec, statistics, rollout.raw_action) * advantage
    return policy, 0.5 * (target - v).square(), literal.compute_entropy(spec, statistics), target, v.detach()


@pytest.mark.parametrize(
    "estimator", [{"gae_lambda": 1.0}, {"gae_lambda": 0.75, "normalize_advantages": True}], ids=str
)
@pytest.mark.parametrize(("kind", "masked", "memory", "changes"), literal.CASES)
def test_the_gradient_is_that_of_the_textbook(kind, masked, memory, changes, estimator):
    spec = literal.SPECS[kind]
    role = make_role(literal.COLUMNS, spec=spec, masked=masked)
    agent = literal.make_exact(make_a2c, role, memory, entropy_coef=0.1, value_coef=0.7, **changes, **estimator)
    rollout = to_float64(random_rollout_of(agent, role))
    assert not rollout.valid.all()
    policy, critic, entropy, *_ = compute_literal_terms(agent, spec, rollout)
    loss = rollout.weight * (-policy + 0.7 * critic - 0.1 * entropy)
    expected = compute_gradient(loss[rollout.valid].mean(), agent.policy)
    actual = compute_gradient(agent.loss(rollout)[0]["actor_critic"], agent.policy)
    assert expected.abs().max() > 1e-2
    torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", literal.SPECS)
def test_metrics_are_means_over_valid_rows(kind):
    role = make_role(literal.COLUMNS, spec=literal.SPECS[kind])
    agent = literal.make_exact(make_a2c, role)
    rollout = replace(to_float64(random_rollout_of(agent, role)), weight=torch.ones(literal.COLUMNS).double())
    policy, critic, entropy, target, v = compute_literal_terms(agent, literal.SPECS[kind], rollout)
    result, valid = agent.loss(rollout)[1], rollout.valid
    means = {"critic_loss": critic, "entropy": entropy, "policy_objective": policy, "value": v}
    expected = {f"train/{name}": value[valid].mean().item() for name, value in means.items()}
    expected["train/explained_variance"] = explain_variance(target[valid].numpy(), v[valid].numpy())
    assert {name: value.item() for name, value in result.compute_metrics().items()} == pytest.approx(expected)
    errors = np.ma.masked_array((target - v).abs(), ~valid)
    np.testing.assert_allclose(result.compute_td_errors(), [errors.max(0), errors.mean(0)])


def test_gradients_reach_the_start_of_a_segment_through_the_memory_but_not_a_previous_episode():
    """The loss of row 4 depends on x_0 through an LSTM, unless an episode ends in between (Mnih et al. 2016)."""
    role = make_role(literal.COLUMNS)
    blueprint = Blueprint(encoders={"*": PassThrough()}, body=Mlp(8), memory=Lstm(5))
    agent = make_a2c(role, blueprint, entropy_coef=0.0)
    agent.policy.double()
    rollout = to_float64(random_rollout_of(agent, role, rows=5))
    rollout = replace(rollout, first=torch.zeros_like(rollout.first), alive=torch.ones_like(rollout.alive))
    rollout.first[3, 1] = True  # column 1: an episode ends after row 2
    rollout.alive[2, 1] = False
    obs = rollout.obs["obs"].requires_grad_()
    error = torch.arange(5).eq(4).unsqueeze(-1).double().expand(5, literal.COLUMNS)  # in row 4 only
    agent.estimate_returns = lambda rollout, v, streams: (v[:-1] + error, error, {})
    (reached,) = torch.autograd.grad(agent.loss(rollout)[0]["actor_critic"], obs)
    assert reached[0, 0].abs().max() > 1e-8
    assert reached[:3, 1].eq(0).all()
    assert reached[3, 1].abs().max() > 1e-8


def test_the_returns_of_a_segment_continue_with_the_value_of_its_last_observation():
    """Rewards of 1; the values of a termination after row 1, and of a truncation with V = 4 after row 3, its own."""
    role = make_role(literal.COLUMNS)
    agent = literal.make_exact(make_a2c, replace(role, lanes=1), gamma=0.9, gae_lambda=1.0)
    rollout = to_float64(random_rollout_of(agent, replace(role, lanes=1), rows=6))
    column = torch.tensor([[False, False, True, False, False, True, False]]).T
    # Rows 0, 1 (termination), 2, 3 (truncation), 4 (its last observation), 5, and the observation after them.
    alive, reward = torch.tensor([[True, False, True, True, True, True]]).T, torch.tensor([[1.0, 1, 1, 1, 0, 1]]).T
    rollout = replace(rollout, first=column, alive=alive, reward=reward.double())
    v = torch.tensor([[0.3, 0.6, 0.4, 0.2, 4, 0.8, 2]]).T.double()
    returns = agent.estimate_returns(rollout, v, {})[0][rollout.valid]
    torch.testing.assert_close(returns, torch.tensor([1.9, 1, 5.14, 4.6, 2.8]).double(), rtol=1e-7, atol=1e-7)
