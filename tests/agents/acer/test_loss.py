"""ACER's gradients, errors and metrics are those of the paper's equations, by autograd and torch.distributions."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from algorithm.distributions import MASKED_LOGIT
from algorithm.specs import ACTION_MASK, ActionSpec
from algorithm.training.learner import Learner
from tests import builders
from tests.agents.acer.literal import COLUMNS, ROWS, SPECS, LiteralLoss, make_case
from tests.oracles import explain_variance

OFF, LOGITS, PROBS = (
    {"trust_region": "off"},
    {"trust_region_space": "logits", "trust_region_delta": 0.02},
    {"trust_region_space": "probs", "trust_region_delta": 0.5},
)
STDS = ("fixed", "learned", "state_dependent")
CLIPS = {"trace_clip": 0.8, "rho_clip": 1.5, "importance_clip": 1.5}


def compute_agent_gradient(agent, rollout, seed=0):
    torch.manual_seed(seed)
    return builders.compute_gradient(agent.loss(rollout)[0]["acer"], agent.policy)


def assert_gradient_is_literal(agent, spec, rollout, seed=0) -> LiteralLoss:
    torch.manual_seed(seed)
    literal = LiteralLoss(agent, spec, rollout)
    expected = builders.compute_gradient(literal.value, agent.policy)
    assert expected.isfinite().all()
    atol = 1e-9 * (1 + expected.abs().max().item())
    torch.testing.assert_close(compute_agent_gradient(agent, rollout, seed), expected, rtol=1e-7, atol=atol)
    return literal


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("kind", "region", "changes"),
    [
        *(("discrete", region, {}) for region in (OFF, LOGITS, PROBS)),
        *((kind, LOGITS, {"std": std}) for kind in ("box", "hybrid") for std in STDS),
        ("branches", LOGITS, {}),
    ],
    ids=str,
)
def test_the_gradient_and_the_errors_are_those_of_the_paper(kind, region, changes, seed):
    agent, rollout = make_case(SPECS[kind], seed, importance_clip=1.5, entropy_coef=0.1, **region, **changes)
    literal = assert_gradient_is_literal(agent, SPECS[kind], rollout, seed)
    torch.manual_seed(seed)
    result = agent.loss(rollout)[1]
    share = result.compute_metrics()["train/trust_region_fraction"].item()
    assert share == pytest.approx(literal.active) and (share == 0 if region is OFF else 0 < share < 1)
    rollout.weight[:] = 1  # metrics are means without weights
    torch.manual_seed(seed)
    assert agent.loss(rollout)[1].compute_metrics()["train/trust_region_fraction"].item() == share
    errors = np.ma.masked_invalid(np.abs(literal.errors))
    np.testing.assert_allclose(result.compute_td_errors(), [errors.max(0), errors.mean(0)], rtol=1e-7)


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize(("estimator", "critic"), builders.PAIRS)
def test_the_gradient_of_every_estimator_and_critic_is_that_of_its_definition(kind, estimator, critic):
    spec, settings = SPECS[kind], {"estimator": estimator, "critic": critic, "trust_region_delta": 0.02, **CLIPS}
    if estimator == "tree_backup" and spec.continuous:
        with pytest.raises(ValueError, match="tree_backup needs probabilities"):
            make_case(spec, **settings)
        return
    agent, rollout = make_case(spec, **settings)
    assert_gradient_is_literal(agent, spec, rollout)
    assert all(value.isfinite() for value in agent.loss(rollout)[1].compute_metrics().values())


@pytest.mark.parametrize("kind", ["discrete", "branches", "hybrid"])
def test_forbidden_actions_have_no_gradient_and_masks_of_burn_in_rows_are_dropped(kind):
    agent, rollout = make_case(SPECS[kind], masked=True, importance_clip=1.5, trust_region_delta=0.02)
    assert_gradient_is_literal(agent, SPECS[kind], rollout)
    rest = replace(
        rollout,
        obs={name: value[2:] for name, value in rollout.obs.items()},
        **{name: getattr(rollout, name)[2:] for name in ("first", "raw_action", "reward", "alive", "behavior")},
    )
    found = [compute_agent_gradient(agent, batch) for batch in (replace(rollout, burn_in=2), rest)]
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)


def test_the_ratio_per_dimension_of_21_dimensions_is_finite():
    """The ratios are far above 1e3, and their logarithms have both signs."""
    agent, rollout = make_case(ActionSpec(continuous=21))
    for shift in (50, -50):
        shifted = replace(rollout, behavior=rollout.behavior.clone())
        shifted.behavior[..., :10] += shift
        assert_gradient_is_literal(agent, ActionSpec(continuous=21), shifted)


@pytest.mark.parametrize("importance_clip", [1e30, math.exp(20) / 2])
@pytest.mark.parametrize("log_ratio", [-60.0, -20.5, 20.5, 60.0])
def test_logarithms_of_ratios_are_bounded_by_20(log_ratio, importance_clip):
    """Those of the action, of a dimension, and of the sample a': with the second c its correction is half of A(a')."""
    settings = {"importance_clip": importance_clip, "trace_clip": 1e30, "trust_region": "off"}
    agent, rollout = make_case(SPECS["box"], rows=2, std="state_dependent", **settings)
    rollout.first[:], rollout.alive[:] = False, True
    mean, log_std = LiteralLoss(agent, SPECS["box"], rollout).statistics[:-1].detach().chunk(2, -1)
    rollout = replace(rollout, raw_action=mean, behavior=torch.cat((mean, log_std + log_ratio / 2), -1))
    assert_gradient_is_literal(agent, SPECS["box"], rollout)
    ratio = agent.loss(rollout)[1].compute_metrics()["train/importance_ratio"].item()
    assert ratio == pytest.approx(math.exp(math.copysign(20, log_ratio)))


@pytest.mark.parametrize("region", [OFF, LOGITS, PROBS], ids=["off", "logits", "probs"])
def test_actions_that_the_behavior_does_not_take_give_finite_gradients(region):
    agent, rollout = make_case(SPECS["discrete"], **region)
    never = rollout.behavior.scatter(-1, (rollout.raw_action.long() + 1) % 3, -1e9)
    assert_gradient_is_literal(agent, SPECS["discrete"], replace(rollout, behavior=never))
    for logit in (-200.0, -1e9):  # a taken action with a tiny probability
        rare = rollout.behavior.scatter(-1, rollout.raw_action.long(), logit)
        assert compute_agent_gradient(agent, replace(rollout, behavior=rare)).isfinite().all()


def test_rows_with_a_single_allowed_action_do_not_count_as_projected():
    """With probabilities as coordinates the constraint is active there, along a direction that changes no policy."""
    agent = builders.make_exact_acer(builders.make_role(COLUMNS, masked=True), seed=1, importance_clip=1.5, **PROBS)
    rollout = builders.to_float64(builders.random_rollout(np.random.default_rng(1), ROWS, COLUMNS))

    def count_active(single):
        allowed = torch.ones(ROWS + 1, COLUMNS, 3, dtype=torch.uint8)
        allowed[:, :single, 1:] = 0
        sample, behavior = rollout.raw_action.clone(), rollout.behavior.clone()
        sample[:, :single] = 0
        behavior[:, :single, 1:] = MASKED_LOGIT
        obs = {**rollout.obs, ACTION_MASK: allowed}
        _, result = agent.loss(replace(rollout, obs=obs, raw_action=sample, behavior=behavior))
        return result.compute_metrics()["train/trust_region_fraction"].item() * rollout.valid.sum().item()

    assert 0 < count_active(2) < count_active(0)
    assert count_active(COLUMNS) == 0


def test_metrics_are_means_over_valid_rows():
    agent, rollout = make_case(
        SPECS["discrete"], estimator="n_step", critic="state_value", trust_region="off", importance_clip=1.2
    )
    literal = LiteralLoss(agent, SPECS["discrete"], rollout)
    log_pi, average = (each[:-1].detach().log_softmax(-1) for each in (literal.statistics, literal.average))
    rho, v = literal.ratio[0], literal.v[:-1].detach()
    truncated = rho.clamp(max=1.2) * (torch.from_numpy(literal.opc) - v)
    expected = {
        "train/critic_loss": 0.5 * torch.from_numpy(literal.errors) ** 2,
        "train/clip_fraction": (rho > 1.2).double(),
        "train/policy_objective": truncated * log_pi.gather(-1, rollout.raw_action.long()).squeeze(-1),
        "train/entropy": -(log_pi.exp() * log_pi).sum(-1),
        "train/kl_to_average": (average.exp() * (average - log_pi)).sum(-1),
        "train/importance_ratio": rho,
        "train/value": v,
        "train/trust_region_fraction": torch.zeros_like(rho),
    }
    expected = {name: value[rollout.valid].mean().item() for name, value in expected.items()}
    of_rows = literal.target[rollout.valid.numpy()], v[rollout.valid].numpy()
    expected["train/explained_variance"] = explain_variance(*of_rows)
    metrics = {name: value.item() for name, value in agent.loss(rollout)[1].compute_metrics().items()}
    assert metrics == pytest.approx(expected, rel=1e-9) and 0 < metrics["train/clip_fraction"] < 1


def test_the_average_network_is_updated_by_its_decay_and_nothing_else_is_left_of_an_update():
    """Gradients do not accumulate, and the collected rollout stays as it is."""
    role = builders.make_role(COLUMNS)
    learner = Learner(
        builders.make_acer(role, average_policy_decay=0.9, learning_rate=0.05, reward_clip=0.5), role, {}, None
    )
    parameters, rollout = learner.parameters, builders.random_rollout(np.random.default_rng(0), ROWS, COLUMNS)
    stored, gradients = rollout.reward.copy(), []
    for _ in range(2):
        before, learned = parameters.target_vector.clone(), parameters.vector.clone()
        builders.update(learner, rollout)
        gradients.append(parameters.gradient.clone())
        torch.testing.assert_close(parameters.target_vector, 0.9 * before + 0.1 * parameters.vector)
        assert not parameters.target_vector.equal(before)
        parameters.vector.copy_(learned)
        parameters.target_vector.copy_(before)
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(rollout.reward, stored)
