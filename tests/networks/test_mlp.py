from __future__ import annotations

import numpy as np
import pytest
import torch

from algorithm.networks import Blueprint, Mlp, NoisyMlp
from algorithm.networks.layers import NoisyLinear, scale_noise
from algorithm.training.evaluator import _isolate_agent
from algorithm.training.learner import Learner
from tests.builders import make_acer, make_role, random_rollout, update

OBS = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
BLUEPRINTS = {
    "body": Blueprint(body=NoisyMlp(16, 8)),
    "tanh": Blueprint(body=NoisyMlp(16, activation="tanh")),
    "policy and critic": Blueprint(body=Mlp(8), policy=NoisyMlp(7), critic=NoisyMlp(6)),
    "policy without a body": Blueprint(policy=NoisyMlp(16)),
}


def noisy_agent(name="body", **changes):
    """Return an agent with noisy layers, and its learner."""
    agent = make_acer(blueprint=BLUEPRINTS[name], **changes)
    return agent, Learner(agent, make_role(), {}, max_step=None)


def acted(agent) -> np.ndarray:
    return agent.policy.act({"obs": OBS}, np.zeros((6, 0), np.float32))[0].copy()


def module(agent) -> np.ndarray:
    return agent.policy({"obs": torch.from_numpy(OBS)}, torch.zeros(6, 0))[0].detach().numpy()


def test_the_noise_of_weights_follows_section_3_of_the_paper():
    """Eq. 10: f(e_out) f(e_in)^T = ((0.5, -2), (-0.15, 0.6)) for e_out (1, -0.09), e_in (0.25, -4)."""
    layer = NoisyLinear(2, 2, std=0.5)
    layer.noise = scale_noise(torch.tensor([1.0, -0.09, 0.25, -4.0]))
    mean, sigma = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 0.5], [2.0, 1.0]])
    with torch.no_grad():
        layer.mean.weight.copy_(mean)
        layer.sigma.weight.copy_(sigma)
        layer.mean.bias.copy_(torch.tensor([0.1, 0.2]))
        layer.sigma.bias.copy_(torch.tensor([3.0, 2.0]))
    eye = torch.eye(2)
    bias = torch.tensor([0.1 + 3 * 1.0, 0.2 + 2 * -0.3])
    expected = (mean + sigma * torch.tensor([[0.5, -2.0], [-0.15, 0.6]])).T + bias
    torch.testing.assert_close(layer(eye), expected)
    np.testing.assert_allclose(layer.numpy()(eye.numpy()), expected, rtol=1e-6)
    layer.eval()
    torch.testing.assert_close(layer(eye), mean.T + torch.tensor([0.1, 0.2]))


def test_weights_start_within_the_bounds_of_the_paper():
    torch.manual_seed(0)
    layer = NoisyLinear(100, 50, std=0.5)
    assert 0.09 < layer.mean.weight.abs().max() <= 0.1
    assert layer.mean.bias.abs().max() <= 0.1
    for sigma in layer.sigma.parameters():
        torch.testing.assert_close(sigma, torch.full_like(sigma, 0.05))


@pytest.mark.parametrize("name", BLUEPRINTS)
def test_noise_is_drawn_by_each_update_and_stays_until_the_next(name):
    # No learning, so that only the noise differs.
    agent, learner = noisy_agent(name, learning_rate=1e-30)
    before = acted(agent)
    np.testing.assert_array_equal(acted(agent), before)
    np.testing.assert_allclose(before, module(agent), atol=1e-6)
    update(learner, random_rollout(np.random.default_rng(0)))
    after = acted(agent)
    assert not np.allclose(after, before, atol=1e-5)
    np.testing.assert_allclose(after, module(agent), atol=1e-6)


@pytest.mark.parametrize("name", BLUEPRINTS)
def test_evaluation_uses_the_means_only(name):
    agent, learner = noisy_agent(name)
    noisy = acted(agent)
    with _isolate_agent(agent, np.random.default_rng(0)):
        means = acted(agent)
        np.testing.assert_allclose(means, module(agent), atol=1e-6)
        learner.noise.resample()
        np.testing.assert_array_equal(acted(agent), means)
    assert not np.allclose(noisy, means)
    learner.noise.values.zero_()
    np.testing.assert_allclose(acted(agent), means, atol=1e-6)


def test_sigmas_are_learned():
    agent, learner = noisy_agent("policy and critic")
    sigmas = {name: p for name, p in agent.policy.named_parameters() if ".sigma." in name}
    assert len(sigmas) == 4
    before = {name: p.detach().clone() for name, p in sigmas.items()}
    update(learner, random_rollout(np.random.default_rng(0)))
    for name, parameter in sigmas.items():
        assert parameter.grad.abs().max() > 0, name
        assert not torch.equal(parameter, before[name]), name


def test_the_target_network_has_the_same_parameters_and_separate_noise():
    agent, learner = noisy_agent()
    own, copied = (
        [layer for layer in network.modules() if isinstance(layer, NoisyLinear)]
        for network in (agent.policy, agent.average_policy.network)
    )
    assert len(learner.noise.values) == 2 * (16 + 3 + 8 + 16)
    for one, other in zip(own, copied, strict=True):
        torch.testing.assert_close(one.mean.weight, other.mean.weight)
        assert not torch.isclose(one.noise, other.noise).any()
    features = torch.from_numpy(OBS)
    assert not torch.allclose(agent.policy.torso.body(features), agent.average_policy.network.torso.body(features))


def test_acting_and_the_next_update_have_the_same_noise():
    agent, learner = noisy_agent()
    statistics, outputs, loss = acted(agent), [], agent.loss
    agent.loss = lambda rollout: outputs.append(module(agent)) or loss(rollout)
    update(learner, random_rollout(np.random.default_rng(0)))
    np.testing.assert_allclose(outputs[0], statistics, atol=1e-6)


def test_networks_without_noisy_layers_draw_nothing():
    agent = make_acer()
    learner = Learner(agent, make_role(), {}, max_step=None)
    before = torch.get_rng_state()
    update(learner, random_rollout(np.random.default_rng(0)))
    assert torch.equal(torch.get_rng_state(), before)
    assert len(learner.noise.values) == 0
