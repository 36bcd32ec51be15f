"""TD3: its equations against autograd, and its run."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from algorithm import load
from algorithm.cli import main
from algorithm.config.registry import make_agent_defaults
from algorithm.networks import Blueprint, Mlp
from algorithm.rollout import Rollout
from algorithm.specs import ActionSpec, ObsSpec, Role
from examples.td3.td3 import TD3, TD3Settings
from tests.builders import make_agent, random_rollout_of

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "td3"
ROLE = Role(4, {"obs": ObsSpec((3,))}, ActionSpec(continuous=2))


def make_td3(**changes) -> TD3:
    """Return an agent whose target networks differ from the networks."""
    defaults = make_agent_defaults("examples.td3.td3:TD3")["td3_config"]
    blueprint = Blueprint(policy=Mlp(8), critic=Mlp(8))
    agent = make_agent(TD3, TD3Settings(**{**defaults, **changes}), ROLE, blueprint, 0)
    for target in agent.target_networks.values():
        target.network.requires_grad_(False)
    return agent


def make_batch(agent: TD3) -> Rollout:
    """Return a batch of single steps as tensors."""
    return random_rollout_of(agent, ROLE, rows=1).convert(torch.from_numpy)


def test_the_gradient_of_the_policy_is_that_of_the_first_critic():
    agent = make_td3(policy_update_every=1)
    rollout = make_batch(agent)
    losses, _ = agent.loss(rollout)
    losses["policy"].backward()
    found = [parameter.grad.clone() for parameter in agent.policy.parameters()]
    assert all(parameter.grad is None for parameter in agent.critics.parameters())
    agent.policy.zero_grad()
    x = rollout.obs["obs"][:1]
    action = agent.network.heads(x)[..., :2].tanh()
    q = agent.critics(x, action.unsqueeze(-2))[0].squeeze(-1)
    (-(q * rollout.valid * rollout.weight).sum() / rollout.valid.sum()).backward()
    for parameter, gradient in zip(agent.policy.parameters(), found, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_the_target_is_the_smaller_value_of_the_smoothed_action():
    agent = make_td3(smoothing_std=10.0, smoothing_clip=0.25, gamma=0.9)
    rollout = make_batch(agent)
    torch.manual_seed(0)
    losses, _ = agent.loss(rollout)
    torch.manual_seed(0)
    x = rollout.obs["obs"]
    targets = [target.network for target in (agent.target_policy, agent.target_critics)]
    noise = (10 * torch.randn_like(x[1:, :, :2])).clamp(-0.25, 0.25)
    action = (targets[0].heads(x[1:])[..., :2].tanh() + noise).clamp(-1, 1)
    y = rollout.reward + 0.9 * rollout.alive * targets[1](x[1:], action.unsqueeze(-2)).squeeze(-1).min(0).values
    q = agent.critics(x[:1], rollout.raw_action.clamp(-1, 1).unsqueeze(-2)).squeeze(-1)
    expected = (0.5 * (y - q).square().sum(0) * rollout.valid * rollout.weight).sum() / rollout.valid.sum()
    torch.testing.assert_close(losses["critics"], expected)


def test_the_policy_and_the_targets_are_delayed():
    agent = make_td3(policy_update_every=3)
    rollout = make_batch(agent)
    for update in range(1, 7):
        agent.update = update
        assert ("policy" in agent.loss(rollout)[0]) == (update in (3, 6))


def test_actions_are_within_their_range_and_the_deterministic_ones_are_those_of_the_network():
    agent = make_td3(exploration_std=3.0)
    step = random_rollout_of(agent, ROLE).obs["obs"][0]
    statistics, _ = agent.policy.act({"obs": step}, np.zeros((len(step), 0), np.float32))
    expected = agent.network.heads(torch.from_numpy(step))[:, :2].tanh()
    np.testing.assert_allclose(statistics[:, :2], expected.detach(), atol=1e-6)
    np.testing.assert_allclose(statistics[:, 2:], np.log(3.0), atol=1e-6)


def test_a_run_is_resumed_and_plays(capsys):
    words = [str(FOLDER), "-n", "a"]
    settings = ["goal=null", "td3_config.random_steps=50", "td3_config.learning_starts=50"]
    assert main.main([*words, "--max-step", "200", "--set", *settings]) == 0
    assert main.main([*words, "--resume", "--max-step", "260"]) == 0
    assert main.main([*words, "--run", "--max_iter", "1"]) == 0
    assert load("runs/examples/td3/a").agent.settings.optimizer_epsilon == 1e-8  # of the optimizer's section
    assert main.main([str(FOLDER), "-n", "b", "--set", "base_config.env_name=CartPole-v1"]) == 2
    assert "TD3 is for continuous actions only" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_td3_solves_pendulum(seed):
    assert main.main([str(FOLDER), "-n", "a", "--seed", str(seed)]) == 0
    assert json.loads(Path("runs/examples/td3/a/result.json").read_text())["reason"].startswith("goal")
