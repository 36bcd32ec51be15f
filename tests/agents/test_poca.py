"""POCA: the values of a team and the baselines of its members, and the gradients of both and of the policy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from algorithm.networks import Blueprint, Mlp
from algorithm.specs import TEAM_ACTION, TEAM_PRESENT
from tests.agents import literal
from tests.builders import add_team, compute_gradient, make_poca, make_role, random_rollout_of, to_float64

ROLE = add_team(make_role(literal.COLUMNS, actions=4))


def make_agent(**settings):
    agent = make_poca(
        ROLE,
        Blueprint(encoders={"*": literal.PassThrough()}, body=Mlp(6)),
        team_size=3,
        team_units=8,
        entropy_coef=0.1,
        **settings,
    )
    literal.move_parameters(agent.policy, 0.3, seed=1)
    literal.move_parameters(agent.critic, 0.3, seed=2)
    agent.policy.double()
    agent.critic.double()
    return agent


def make_rollout(agent):
    """Return a rollout in which members are absent, or have left, in some rows."""
    rollout = to_float64(random_rollout_of(agent, ROLE))
    rng = torch.Generator().manual_seed(0)
    shape = rollout.obs["obs"].shape[:2]
    present = torch.ones(*shape, 3, dtype=torch.float64)
    present[..., 1:] = (torch.rand(*shape, 2, generator=rng) < 0.7).double()
    action = torch.nn.functional.one_hot(torch.randint(4, (*shape, 2), generator=rng), 4).double()
    obs = {**rollout.obs, TEAM_PRESENT: present, TEAM_ACTION: action * present[..., 1:, None]}
    obs["team/obs"] = torch.randn(*shape, 2, 3, generator=rng, dtype=torch.float64) * present[..., 1:, None]
    return replace(rollout, obs=obs)


def values(agent, obs):
    with torch.no_grad():
        return torch.stack(agent.critic(obs))


def changed(obs, name, rows=slice(None)):
    value = obs[name].clone()
    value[..., rows, :] += 1.0
    return {**obs, name: value}


def test_the_value_reads_all_present_members_and_the_baseline_the_actions_of_the_others():
    agent = make_agent()
    obs = make_rollout(agent).obs
    v, baseline = values(agent, obs)
    first = slice(0, 1)  # the first of the other members
    is_there = obs[TEAM_PRESENT][..., 1] > 0
    for name, effects in (("team/obs", [True, True]), (TEAM_ACTION, [False, True])):
        for before, after, has_effect in zip(
            (v, baseline), values(agent, changed(obs, name, first)), effects, strict=True
        ):
            differs = (before - after).abs() > 1e-9
            assert not differs[~is_there].any()  # of an absent member nothing counts
            assert differs[is_there].all() == has_effect and differs[is_there].any() == has_effect
    own = values(agent, {**obs, "obs": obs["obs"] + 1})
    assert ((own - torch.stack((v, baseline))).abs() > 1e-9).all()


def test_the_order_of_the_other_members_has_no_effect():
    agent = make_agent()
    obs = make_rollout(agent).obs
    swapped = {name: value.flip(-2) if name in ("team/obs", TEAM_ACTION) else value for name, value in obs.items()}
    swapped[TEAM_PRESENT] = obs[TEAM_PRESENT][..., [0, 2, 1]]
    torch.testing.assert_close(values(agent, swapped), values(agent, obs))


def test_the_value_of_a_member_that_has_left_is_that_of_its_team():
    agent = make_agent()
    obs = make_rollout(agent).obs
    other = obs["team/obs"][..., 0, :]
    alone = torch.zeros_like(obs[TEAM_PRESENT])
    alone[..., 0] = 1
    expected = values(agent, {**obs, "obs": other, TEAM_PRESENT: alone})[0]
    left = torch.zeros_like(alone)
    left[..., 1] = 1
    torch.testing.assert_close(values(agent, {**obs, "obs": obs["obs"] + 5, TEAM_PRESENT: left})[0], expected)


def test_targets_are_those_of_the_team_and_advantages_subtract_the_baseline():
    agent = make_agent(gae_lambda=0.75, gamma=literal.GAMMA)
    rollout = make_rollout(agent)
    with torch.no_grad():
        prepared = agent.prepare(rollout)
    actions = rollout.obs[TEAM_ACTION]  # those of row t are known in row t + 1
    torch.testing.assert_close(prepared.obs[TEAM_ACTION][:-1], actions[1:])
    v, baseline = values(agent, {**rollout.obs, TEAM_ACTION: torch.cat((actions[1:], actions[-1:]))})
    expected, valid = literal.estimate_by_definition(rollout, v, 0.75), rollout.valid
    torch.testing.assert_close(prepared.targets["value"][valid], expected[valid])
    torch.testing.assert_close(prepared.targets["advantage"][valid], (expected - baseline[:-1])[valid])


@pytest.mark.parametrize("settings", [{}, {"value_clip": 0.05}, {"normalize_advantages": False, "clip_ratio": 0.05}])
def test_gradients_are_those_of_the_clipped_objective_and_of_both_errors(settings):
    agent = make_agent(value_coef=0.7, **settings)
    rollout = make_rollout(agent)
    with torch.no_grad():
        prepared = agent.prepare(rollout)
    literal.move_parameters(agent.policy, 0.1, seed=3)
    literal.move_parameters(agent.critic, 0.1, seed=4)
    targets, valid, clip = prepared.targets, rollout.valid, agent.settings.clip_ratio
    rows = {name: value[:-1] for name, value in prepared.obs.items()}
    statistics, _ = agent.policy({name: value.flatten(0, 1) for name, value in rows.items()}, torch.zeros(0, 0))
    statistics = statistics.unflatten(0, valid.shape)
    old, new = (
        each.log_softmax(-1).gather(-1, rollout.raw_action.long())[..., 0] for each in (rollout.behavior, statistics)
    )
    advantage = targets["advantage"]
    if agent.settings.normalize_advantages:
        advantage = literal.normalize(advantage, valid)
    ratio = (new - old).exp()
    objective = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    log_probs = statistics.log_softmax(-1)
    loss = rollout.weight * (-objective + 0.1 * (log_probs.exp() * log_probs).sum(-1))
    errors = torch.zeros_like(loss)
    for value, old_value in zip(agent.critic(rows), (targets["old_value"], targets["old_baseline"]), strict=True):
        error = (targets["value"] - value).square()
        if agent.settings.value_clip is not None:
            limited = old_value + (value - old_value).clamp(-0.05, 0.05)
            error = torch.maximum(error, (targets["value"] - limited).square())
        errors = errors + rollout.weight * 0.7 * error / 2
    expected = [
        compute_gradient(loss[valid].mean(), agent.policy),
        compute_gradient(errors[valid].mean(), agent.critic),
    ]
    losses, _ = agent.loss(prepared)
    actual = [
        compute_gradient(losses["actor_critic"], agent.policy),
        compute_gradient(losses["team_critic"], agent.critic),
    ]
    for one, other in zip(actual, expected, strict=True):
        assert other.abs().max() > 1e-3
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9)


def test_the_policy_does_not_read_the_team():
    agent = make_agent()
    assert agent.policy.torso.names == ["obs"] and agent.critic.torso.names == ["obs"]
    assert agent.supports_streams(agent.settings) is False and np.isfinite(agent.policy.torso.size)
