"""Agents with reward streams have the gradient of the written-out objective, and learn known values of streams."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch.distributions import Categorical

from algorithm.agents.agent import unroll
from algorithm.agents.metrics import mean_weights
from algorithm.agents.sac.agent import Sac
from algorithm.networks import Blueprint, Gru, Mlp
from algorithm.returns import ESTIMATORS, EstimatorInputs, RewardStream, TraceClipping, estimate_streams
from tests.agents.literal import COLUMNS, GAMMA, move_parameters, normalize
from tests.builders import (
    PassThrough,
    compute_gradient,
    make_a2c,
    make_acer,
    make_ppo,
    make_role,
    random_rollout_of,
    sac_settings,
    to_float64,
)

ACTIONS = 3
STREAMS = {
    "novelty": RewardStream(gamma=0.75, weight=0.5, crosses_episodes=True),
    "episodic": RewardStream(gamma=0.5, weight=2.0, crosses_episodes=False),
}
MAKE_AGENT = {"acer": partial(make_acer, critic="state_value", estimator="vtrace"), "a2c": make_a2c, "ppo": make_ppo}


@pytest.fixture(params=MAKE_AGENT)
def make_agent(request):
    return MAKE_AGENT[request.param]


def make_exact(make, memory=False, **changes):
    """Return an agent with streams, in float64, whose policy is far from uniform."""
    changes = {"gamma": GAMMA, "value_coef": 0.7, "entropy_coef": 0.1, **changes}
    blueprint = Blueprint(encoders={"*": PassThrough()}, body=Mlp(8), memory=Gru(5) if memory else None)
    agent = make(make_role(COLUMNS, actions=ACTIONS), blueprint, streams=STREAMS, **changes)
    networks = {agent.policy, *(group.module for group in agent.groups.values())}
    for number, network in enumerate([*networks, *(target.network for target in agent.target_networks.values())]):
        move_parameters(network.double(), 0.4, seed=number)
    return agent


def make_rollout(agent, seed=1, rows=9):
    """Return a collected rollout with bonuses, with a row that is not valid only for the stream across episodes."""
    rollout = random_rollout_of(agent, make_role(COLUMNS, actions=ACTIONS), seed, rows)
    rng = np.random.default_rng(seed)
    rollout = to_float64(replace(rollout, bonuses={name: rng.normal(size=(rows, COLUMNS)) for name in STREAMS}))
    assert not rollout.valid.all() and (rollout.valid[-1] & ~rollout.alive[-1] & ~rollout.first[-1]).any()
    return rollout


def compute_outputs(agent, rollout):
    """Return the logits and the values of environment, `episodic` and `novelty`, with gradient."""
    features = unroll(agent.policy.torso, rollout)
    outputs = agent.policy.compute_outputs(features)
    if getattr(agent, "separate_critic", None):
        outputs = torch.cat((outputs, agent.separate_critic(features.detach())), -1)
    logits, v, episodic, novelty = outputs.split([ACTIONS, 1, 1, 1], -1)
    return logits, v.squeeze(-1), {"episodic": episodic.squeeze(-1), "novelty": novelty.squeeze(-1)}


def compute_agent_gradient(scalar, agent):
    return compute_gradient(scalar, *(group.module for group in agent.groups.values()))


def estimate_all(estimator, rollout, values, clipping, rho):
    """Return the estimates of all rewards: those of the environment, as a stream within episodes, and both streams."""
    streams = {"": RewardStream(gamma=GAMMA, weight=1.0, crosses_episodes=False), **STREAMS}
    bonuses = {"": rollout.reward, **rollout.bonuses}
    inputs = EstimatorInputs(
        reward=rho, discount=rho, valid=rho, v=rho, q_taken=rho, rho=rho, rho_per_dimension=rho, prob_taken=lambda: rho
    )
    estimate = partial(ESTIMATORS[estimator].estimate, clipping=clipping)
    of_streams = [values[name].detach() for name in streams]
    return estimate_streams(streams, bonuses, rollout.first, rollout.alive, of_streams, inputs, estimate)


def estimate_on_policy(rollout, values):
    clipping = TraceClipping(trace_clip=1.0, rho_clip=1.0, trace_lambda=0.75)
    return estimate_all("n_step", rollout, values, clipping, torch.full_like(rollout.reward, torch.nan))


def sum_advantages(estimates):
    return estimates[""].advantage + 0.5 * estimates["novelty"].advantage + 2 * estimates["episodic"].advantage


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("normalizes", [False, True])
def test_the_gradient_of_a2c_is_that_of_the_written_out_objective(normalizes, memory):
    agent = make_exact(make_a2c, memory, gae_lambda=0.75, normalize_advantages=normalizes)
    rollout = make_rollout(agent)
    logits, v, stream_values = compute_outputs(agent, rollout)
    policy, values = Categorical(logits=logits[:-1]), {"": v, **stream_values}
    estimates = estimate_on_policy(rollout, values)
    advantage = sum_advantages(estimates)
    if normalizes:
        advantage = normalize(advantage, rollout.valid)
    objective = policy.log_prob(rollout.raw_action.squeeze(-1)) * advantage + 0.1 * policy.entropy()
    assert_objective_and_metrics(agent, rollout, objective, values, estimates)


def assert_objective_and_metrics(agent, batch, objective, values, estimates, value_clip=None):
    """Assert the gradient of an objective of the policy and the errors of all values; metrics are means over rows."""
    for name, estimate in estimates.items():
        value = values[name][:-1]
        square = (estimate.target - value).square()
        if value_clip:
            clipped = estimate.value + (value - estimate.value).clamp(-value_clip, value_clip)
            square = torch.maximum(square, (estimate.target - clipped).square())
        objective = objective - 0.7 * estimate.valid.double() * square / 2
    valid = batch.drop_burn_in().valid
    loss = -(mean_weights(valid, batch.weight) * objective).sum()
    gradients = (compute_agent_gradient(each, agent) for each in (sum(agent.loss(batch)[0].values()), loss))
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-10)
    batch.weight[:] = 1
    metrics = agent.loss(batch)[1].compute_metrics()
    for name in STREAMS:
        value = values[name][: len(valid)].detach()
        squares = estimates[name].valid * (estimates[name].target - value).square() / 2
        torch.testing.assert_close(metrics[f"train/{name}_critic_loss"], squares[valid].mean())
        torch.testing.assert_close(metrics[f"train/{name}_value"], value[valid].mean())


@pytest.mark.parametrize("value_clip", [None, 0.1])
@pytest.mark.parametrize("memory", [False, True])
def test_the_gradient_of_ppo_is_that_of_the_written_out_objective(memory, value_clip):
    agent = make_exact(make_ppo, memory, gae_lambda=0.75, normalize_advantages=True, value_clip=value_clip)
    collected = make_rollout(agent)
    with torch.no_grad():
        prepared = agent.prepare(collected)
        old_values = compute_outputs(agent, collected)[1:]
    estimates = estimate_on_policy(collected, {"": old_values[0], **old_values[1]})
    advantage = normalize(sum_advantages(estimates), prepared.valid)
    move_parameters(agent.policy, 0.1, seed=2)
    logits, v, stream_values = compute_outputs(agent, collected)
    policy, old_policy = Categorical(logits=logits[:-1]), Categorical(logits=prepared.behavior)
    values, action = {"": v, **stream_values}, prepared.raw_action.squeeze(-1)
    ratio, clip = (policy.log_prob(action) - old_policy.log_prob(action)).exp(), agent.settings.clip_ratio
    objective = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage) + 0.1 * policy.entropy()
    assert_objective_and_metrics(agent, prepared, objective, values, estimates, value_clip)


@pytest.mark.parametrize("memory", [False, True])
def test_minibatches_of_ppo_add_up_to_the_rollout(memory):
    agent = make_exact(make_ppo, memory, normalize_advantages=False)
    with torch.no_grad():
        prepared = agent.prepare(make_rollout(agent))
    move_parameters(agent.policy, 0.1, seed=2)
    rollout = prepared.convert(lambda tensor: tensor.numpy())
    rollout = rollout if memory else rollout.split_rows()
    total = 0.0
    for part in np.array_split(np.random.default_rng(0).permutation(len(rollout.lane)), 3):
        batch = rollout.take_columns(part).convert(torch.from_numpy)
        assert batch.bonuses.keys() == STREAMS.keys()
        total += compute_agent_gradient(agent.loss(batch)[0]["actor_critic"], agent) * batch.valid.sum()
    whole = compute_agent_gradient(agent.loss(prepared)[0]["actor_critic"], agent)
    torch.testing.assert_close(total / prepared.valid.sum(), whole, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("estimator", ["vtrace", "n_step"])
@pytest.mark.parametrize("trust_region", ["off", "full"])
def test_the_gradient_of_acer_is_that_of_the_written_out_objective(trust_region, estimator):
    settings = {"trust_region": trust_region, "estimator": estimator, "critic": "state_value", "trace_lambda": 0.75}
    agent = make_exact(make_acer, True, **settings, trace_clip=0.8, rho_clip=1.5, importance_clip=1.5)
    with_burn_in = replace(make_rollout(agent), burn_in=2)
    rollout = with_burn_in.drop_burn_in()
    logits, v, stream_values = compute_outputs(agent, with_burn_in)
    policy, behavior = Categorical(logits=logits[:-1]), Categorical(logits=rollout.behavior)
    action, values = rollout.raw_action.squeeze(-1), {"": v, **stream_values}
    rho = (policy.log_prob(action) - behavior.log_prob(action)).exp().detach()
    estimates = estimate_all(estimator, rollout, values, agent.trace_clipping, rho)
    weight = rho.clamp(max=1.5) * sum_advantages(estimates)
    objective = policy.log_prob(action) * weight + 0.1 * policy.entropy()
    assert_objective_and_metrics(agent, with_burn_in, objective, values, estimates)


def test_the_trust_region_of_acer_limits_the_sum_of_all_advantages():
    """The advantage of a stream has the same effect on the policy as an advantage of the environment's rewards."""
    changes = {"critic": "state_value", "estimator": "vtrace", "trust_region_delta": 0.02, "value_coef": 0.0}
    agent = make_exact(make_acer, **changes)
    rollout = make_rollout(agent)
    stream = RewardStream(gamma=GAMMA, weight=1.0, crosses_episodes=False)
    agent.streams = dict.fromkeys(("episodic", "novelty"), stream)
    head = agent.policy.heads.linear
    with torch.no_grad():  # all values are 0, so that advantages are linear in rewards
        head.weight[ACTIONS:], head.bias[ACTIONS:] = 0, 0
    split = replace(
        rollout, reward=rollout.reward / 2, bonuses={"episodic": rollout.reward / 8, "novelty": 3 * rollout.reward / 8}
    )
    whole = replace(rollout, bonuses={name: torch.zeros_like(rollout.reward) for name in STREAMS})
    reports = [agent.loss(each) for each in (split, whole)]
    gradients = [compute_agent_gradient(losses["acer"], agent) for losses, _ in reports]
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-10)
    fractions = [result.compute_metrics()["train/trust_region_fraction"] for _, result in reports]
    assert fractions[0] == fractions[1] and 0 < fractions[0] < 1


def test_values_are_in_the_order_of_names(make_agent):
    role, blueprint = make_role(), Blueprint(body=Mlp(8))
    agents = [
        make_agent(role, blueprint, streams={name: STREAMS[name] for name in names})
        for names in (["novelty", "episodic"], ["episodic", "novelty"])
    ]
    parameters = [torch.cat([each.flatten() for each in agent.policy.parameters()]) for agent in agents]
    assert parameters[0].equal(parameters[1])
    assert [list(agent.streams) for agent in agents] == [["episodic", "novelty"]] * 2
    assert make_agent(role, blueprint).streams == {}


def test_agents_with_state_values_support_streams():
    for make, supported in ((make_a2c, True), (make_ppo, True), (make_acer, False), (MAKE_AGENT["acer"], True)):
        agent = make()
        assert agent.supports_streams(agent.settings) is supported
    assert Sac.supports_streams(sac_settings()) is False
    with pytest.raises(ValueError, match="critic action_value has no values of reward streams; use state_value"):
        make_acer(streams=STREAMS)
