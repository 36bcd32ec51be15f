"""SAC's target and temperature for one discrete branch, by the formulas: with masks, a torso, and each reduction."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from algorithm.networks import Blueprint, Mlp
from algorithm.specs import ACTION_MASK, ActionSpec, ObsSpec, Role
from tests.builders import PassThrough, make_sac, random_rollout, to_float64

GAMMA, ACTIONS, COLUMNS = 0.875, 3, 4


def make_agent(body=None, masked=False, **changes):
    """Return an agent in float64 whose networks differ from each other."""
    specs = {"obs": ObsSpec((3,))} | ({ACTION_MASK: ObsSpec((ACTIONS,), "uint8")} if masked else {})
    role = Role(COLUMNS, specs, ActionSpec(branches=(ACTIONS,)))
    agent = make_sac(role, Blueprint(encoders={"obs": PassThrough()}, body=body), gamma=GAMMA, **changes)
    for network in (agent.critics, agent.policy, agent.target.network, agent.policy_learner.temperature):
        network.double()
        for parameter in network.parameters():
            nn.init.normal_(parameter)
    return agent


def make_rollout(allowed=None):
    """Return one step of each lane within an episode; `allowed` [2, COLUMNS, ACTIONS] are the masks."""
    rollout = to_float64(random_rollout(np.random.default_rng(0), 1, COLUMNS))
    rollout.first[:], rollout.alive[:] = False, True
    if allowed is None:
        return rollout
    action = allowed[:1].long().argmax(-1, keepdim=True).double()
    return replace(rollout, raw_action=action, obs={**rollout.obs, ACTION_MASK: allowed})


def compute_features(network, obs):
    """Return the features of a torso with at most one hidden layer."""
    body = network.torso.body
    return torch.relu(obs @ body.layers[0].weight.T + body.layers[0].bias) if body else obs


def compute_error(agent, rollout, reduce):
    """Return |r + gamma V(x') - mean of Q(x, a)| of each lane; V(x') = sum_a pi (Q' - w alpha log pi) (Eq. 3 and 5)."""
    obs, alpha = rollout.obs["obs"], agent.policy_learner.temperature.log_alpha.exp()
    logits = agent.policy.compute_outputs(compute_features(agent.critics, obs[1]))
    if ACTION_MASK in rollout.obs:
        logits = logits.masked_fill(rollout.obs[ACTION_MASK][1] == 0, -torch.inf)
    pi = logits.softmax(-1)
    log_pi = pi.clamp(min=1e-300).log()  # finite where pi is 0
    next_q = torch.stack(
        [critic(compute_features(agent.target.network, obs[1])) for critic in agent.target.network.critics]
    )
    next_q = next_q.amin(0) if reduce == "min" else next_q.mean(0)
    v = (pi * (next_q - agent.settings.alpha_critic_scale * alpha * log_pi)).sum(-1)
    q = sum(critic(compute_features(agent.critics, obs[0])) for critic in agent.critics.critics)
    taken = q.gather(-1, rollout.raw_action[0].long()).squeeze(-1) / len(agent.critics.critics)
    return (rollout.reward[0] + GAMMA * v - taken).abs()


@pytest.mark.parametrize("alpha_critic_scale", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("reduce", ["min", "mean", "auto"])
@pytest.mark.parametrize("body", [None, Mlp(8)], ids=["no layers in the torso", "a layer in the torso"])
def test_the_target_is_computed_by_the_target_network(body, reduce, alpha_critic_scale):
    agent = make_agent(body, ensemble_q_reduce=reduce, alpha_critic_scale=alpha_critic_scale)
    rollout = make_rollout()
    largest, mean = agent.loss(rollout)[1].compute_td_errors()
    torch.testing.assert_close(largest, compute_error(agent, rollout, reduce), rtol=1e-9, atol=0)
    assert largest.equal(mean)


def test_forbidden_actions_enter_neither_the_target_nor_the_temperature():
    allowed = torch.tensor([[[1, 1, 1], [1, 1, 0], [0, 1, 0], [0, 1, 1]], [[1, 0, 1], [0, 0, 1], [1, 1, 1], [1, 1, 0]]])
    agent, rollout = make_agent(masked=True, use_auto_alpha=True), make_rollout(allowed.to(torch.uint8))
    losses, report = agent.loss(rollout)
    expected = compute_error(agent, rollout, "mean")
    torch.testing.assert_close(report.compute_td_errors()[0], expected, rtol=1e-9, atol=0)

    logits = agent.policy.compute_outputs(rollout.obs["obs"][0]).masked_fill(allowed[0] == 0, -torch.inf)
    entropy = torch.distributions.Categorical(logits=logits).entropy()
    target = agent.settings.target_d_alpha * torch.tensor([math.log(int(row.sum())) for row in allowed[0]])
    (gradient,) = torch.autograd.grad(losses["alpha"], agent.policy_learner.temperature.log_alpha)
    torch.testing.assert_close(gradient[0], (entropy - target.double()).mean().detach(), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "changes", [{"use_n_step_is": False}, {"estimator": "vtrace", "v_rho": 1e9, "v_c": 1e9}], ids=str
)
@pytest.mark.parametrize("n_step", [2, 3, 5])
def test_a_reward_enters_the_targets_of_at_most_n_steps(n_step, changes):
    """In sequences of one episode a reward enters the targets of its step and the n - 1 earlier steps: sum_j gamma^j.

    The behavior is the policy, so that all ratios are 1. Rewards are so large that all errors are positive.
    """
    rows = 5
    agent = make_agent(sequence_length=rows, n_step=n_step, **changes)
    rollout = to_float64(random_rollout(np.random.default_rng(0), rows, COLUMNS))
    rollout.first[:], rollout.alive[:], rollout.reward[:] = False, True, 100.0
    rollout.behavior = agent.policy.compute_outputs(rollout.obs["obs"][:-1]).detach()

    def sum_errors(reward):
        mean = agent.loss(replace(rollout, reward=reward))[1].compute_td_errors()[1]
        return rows * mean

    for row in range(rows):
        more = rollout.reward.clone()
        more[row] += 1
        expected = sum(GAMMA**j for j in range(min(n_step, row + 1)))
        torch.testing.assert_close(
            sum_errors(more) - sum_errors(rollout.reward), torch.full((COLUMNS,), expected).double()
        )
