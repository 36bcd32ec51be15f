"""A2C's gradient is that of the textbook's loss, computed row by row and differentiated by autograd."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.agents import literal
from tests.builders import compute_gradient, make_a2c, make_role, random_rollout_of, to_float64
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
