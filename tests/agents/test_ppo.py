"""PPO's gradient is that of the clipped objective, computed row by row and differentiated by autograd."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.agents import literal
from tests.builders import compute_gradient, make_ppo, make_role, random_rollout_of, to_float64
from tests.oracles import explain_variance

SETTINGS = [
    {"normalize_advantages": False},
    {"normalize_advantages": True, "value_clip": 0.2},
    {"clip_ratio": 0.05, "clip_ratio_schedule": "linear", "entropy_coef_schedule": "linear", "value_clip": 1e9},
    {
        "clip_ratio": 0.05,
        "clip_ratio_schedule": "linear",
        "clip_ratio_final_fraction": 1.5,
        "entropy_coef_schedule": "linear",
        "entropy_coef_final_fraction": 0.25,
        "value_clip": 0.02,
    },
]


def make_case(kind, masked, memory, changes):
    """Return an agent, its spec, a prepared rollout, and the collected one."""
    spec = literal.SPECS[kind]
    role = make_role(literal.COLUMNS, spec=spec, masked=masked)
    agent = literal.make_exact(
        make_ppo, role, memory, **{"entropy_coef": 0.1, "value_coef": 0.7, "gae_lambda": 0.75, **changes}
    )
    collected = to_float64(random_rollout_of(agent, role))
    with torch.no_grad():
        prepared = agent.prepare(collected)
    return agent, spec, prepared, collected


def compute_literal_terms(agent, spec, rollout):
    """Return the terms of Schulman et al. 2017, Eq. 9: objective, critic, entropy, ratio, KL, values; and the clip."""
    settings, targets, scale = agent.settings, rollout.targets, 1.0
    if settings.clip_ratio_schedule == "linear":
        scale += agent.progress * (settings.clip_ratio_final_fraction - 1)
    clip = settings.clip_ratio * scale
    statistics, v = literal.compute_outputs_by_step(agent, rollout, literal.ROWS)
    advantage, target, old_value = (targets[name] for name in ("advantage", "value", "old_value"))
    if settings.normalize_advantages:
        advantage = literal.normalize(advantage, rollout.valid)
    log_probs = (literal.compute_log_prob(spec, each, rollout.raw_action) for each in (statistics, rollout.behavior))
    ratio = torch.sub(*log_probs).exp()
    objective = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    critic = (target - v).square() / 2
    if settings.value_clip is not None:
        value_clip = settings.value_clip * scale
        clipped = old_value + (v - old_value).clamp(-value_clip, value_clip)
        critic = torch.maximum(critic, (target - clipped).square() / 2)
    kl = literal.compute_kl(spec, rollout.behavior, statistics)
    return objective, critic, literal.compute_entropy(spec, statistics), ratio, kl, v, clip


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize(("kind", "masked", "memory", "changes"), literal.CASES)
def test_the_gradient_is_that_of_the_clipped_objective(kind, masked, memory, changes, settings):
    agent, spec, rollout, _ = make_case(kind, masked, memory, {**changes, **settings})
    agent.progress = progress = 0.4
    literal.move_parameters(agent.policy, 0.1, seed=2)  # the policy and the values differ from those of `prepare`
    objective, critic, entropy, ratio, *_, clip = compute_literal_terms(agent, spec, rollout)
    valid = rollout.valid
    assert 0 < valid.sum() < literal.ROWS * literal.COLUMNS and ((ratio - 1).abs() > clip)[valid].any()
    entropy_coef = 0.1
    if agent.settings.entropy_coef_schedule == "linear":
        entropy_coef *= 1 - progress + progress * agent.settings.entropy_coef_final_fraction
    loss = rollout.weight * (-objective + 0.7 * critic - entropy_coef * entropy)
    expected = compute_gradient(loss[valid].mean(), agent.policy)
    actual = compute_gradient(agent.loss(rollout)[0]["actor_critic"], agent.policy)
    assert expected.abs().max() > 1e-2
    torch.testing.assert_close(actual, expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("kind", "masked", "memory", "changes"), literal.CASES)
def test_targets_are_those_of_the_network_before_the_epochs(kind, masked, memory, changes):
    agent, _, prepared, collected = make_case(kind, masked, memory, changes)
    _, v = literal.compute_outputs_by_step(agent, collected, literal.ROWS + 1)
    v, valid = v.detach(), collected.valid
    expected = literal.estimate_by_definition(collected, v, 0.75)
    torch.testing.assert_close(prepared.targets["value"][valid], expected[valid])
    torch.testing.assert_close(prepared.targets["old_value"], v[:-1])
    torch.testing.assert_close(prepared.targets["advantage"][valid], (expected - v[:-1])[valid])
    assert (
        all(len(value) == literal.ROWS + 1 for value in prepared.obs.values())
        and len(prepared.first) == literal.ROWS + 1
    )
    assert not any(value.requires_grad for value in prepared.targets.values())


@pytest.mark.parametrize("kind", literal.SPECS)
def test_metrics_are_means_over_valid_rows(kind):
    agent, spec, rollout, _ = make_case(kind, False, False, {"target_kl": 0.01})
    rollout = replace(rollout, weight=torch.ones(literal.COLUMNS).double())
    literal.move_parameters(agent.policy, 0.1, seed=2)  # the policy and the values differ from those of `prepare`
    objective, critic, entropy, ratio, kl, v, clip = compute_literal_terms(agent, spec, rollout)
    result, valid = agent.loss(rollout)[1], rollout.valid
    means = {
        "critic_loss": critic,
        "entropy": entropy,
        "kl_to_old_policy": kl,
        "clip_fraction": ((ratio - 1).abs() > clip).double(),
        "policy_objective": objective,
        "value": v,
    }
    expected = {f"train/{name}": value[valid].mean().item() for name, value in means.items()}
    of_rows = rollout.targets["value"][valid].numpy(), v[valid].detach().numpy()
    expected["train/explained_variance"] = explain_variance(*of_rows)
    assert {name: value.item() for name, value in result.compute_metrics().items()} == pytest.approx(expected)
    assert not valid.all() and result.kl_excess == pytest.approx(expected["train/kl_to_old_policy"] - 0.01)
    assert result.kl_excess > 0  # the behavior is a random policy


def test_the_logarithm_of_the_ratio_is_at_most_20():
    agent, _, rollout, _ = make_case(
        "discrete", False, False, {"normalize_advantages": False, "entropy_coef": 0.0, "value_coef": 0.0}
    )
    advantage = -rollout.targets["advantage"].abs() - 1  # a large ratio with a negative advantage is not clipped
    rollout = replace(rollout, targets={**rollout.targets, "advantage": advantage})
    log_probs = literal.compute_outputs_by_step(agent, rollout, literal.ROWS)[0].detach().log_softmax(-1)
    action = rollout.raw_action.long()

    def compute_gradient_of(log_ratio):
        probs = log_probs.exp().scatter(-1, action, 0)
        taken = (log_probs.gather(-1, action) - log_ratio).exp()
        behavior = (probs / probs.sum(-1, keepdim=True) * (1 - taken)).scatter(-1, action, taken).log()
        return compute_gradient(agent.loss(replace(rollout, behavior=behavior))[0]["actor_critic"], agent.policy)

    at_ratio_1 = compute_gradient_of(0.0)
    assert at_ratio_1.abs().max() > 1e-2
    for log_ratio, bounded in ((19.0, 19.0), (20.0, 20.0), (25.0, 20.0), (600.0, 20.0)):
        torch.testing.assert_close(compute_gradient_of(log_ratio) / np.exp(bounded), at_ratio_1)


@pytest.mark.parametrize(("target_kl", "ends"), [(None, False), (1e-9, True), (1e9, False)])
def test_epochs_end_above_the_target_kl(target_kl, ends):
    agent, _, rollout, _ = make_case("hybrid", False, False, {"target_kl": target_kl})
    assert (agent.loss(rollout)[1].kl_excess > 0) == ends
