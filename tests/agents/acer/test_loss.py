"""Parts of ACER's loss: its metrics, and the trust region in probabilities with a critic of state values."""

import numpy as np
import pytest
import torch

from tests.builders import exact, make_exact_acer, make_role, random_rollout


def test_metrics_are_means_over_valid_rows():
    agent = make_exact_acer(gamma=0.875, estimator="n_step", critic="state_value", trust_region="off")
    rollout = exact(random_rollout(np.random.default_rng(0)))
    logits, values = agent.policy.compute_outputs(rollout.obs["obs"]).detach().split([3, 1], -1)
    average = agent.average_policy.network.compute_outputs(rollout.obs["obs"]).detach()[:-1, :, :3].log_softmax(-1)
    log_pi, log_mu = logits[:-1].log_softmax(-1), rollout.behavior.log_softmax(-1)
    log_ratio = (log_pi - log_mu).gather(-1, rollout.raw_action.long()).squeeze(-1)
    metrics = agent.loss(rollout)[1].compute_metrics()
    expected = {
        "train/entropy": -(log_pi.exp() * log_pi).sum(-1),
        "train/kl_to_average": (average.exp() * (average - log_pi)).sum(-1),
        "train/importance_ratio": log_ratio.exp(),
        "train/value": values[:-1].squeeze(-1),
        "train/trust_region_fraction": torch.zeros_like(log_ratio),
    }
    assert metrics.keys() == {"train/critic_loss", *expected}
    for name, value in expected.items():
        assert metrics[name].item() == pytest.approx(value[rollout.valid].mean().item(), rel=1e-9), name


@pytest.mark.parametrize("reward", [-3.0, 0.0, 3.0])
def test_the_trust_region_of_a_state_value_critic_in_probabilities(reward):
    """One step that ends an episode: the gradient of the logits is that of Eq. 9 minus a multiple of pi - average.

    In probabilities g = rho A / pi(a) for the taken action, and k = -average / pi (Eq. 11-12).
    """
    delta, role = 0.5, make_role(1)
    agent = make_exact_acer(
        role,
        seed=1,
        estimator="n_step",
        critic="state_value",
        entropy_coef=0.0,
        value_coef=0.0,
        trust_region_space="probs",
        trust_region_delta=delta,
    )
    rollout = exact(random_rollout(np.random.default_rng(0), 1, 1))
    rollout.first[:], rollout.alive[:], rollout.reward[:] = False, False, reward
    outputs = agent.policy.compute_outputs(rollout.obs["obs"]).detach()[0, 0]
    average = agent.average_policy.network.compute_outputs(rollout.obs["obs"]).detach()[0, 0, :3].softmax(-1)
    pi, mu, action = outputs[:3].softmax(-1), rollout.behavior[0, 0].softmax(-1), int(rollout.raw_action)
    weight = (pi[action] / mu[action]).clamp(max=agent.settings.importance_clip) * (reward - outputs[3])

    taken = torch.nn.functional.one_hot(torch.tensor(action), 3).double()
    g, k = weight * taken / pi, -average / pi
    multiplier = ((k @ g - delta) / (k @ k)).clamp(min=0)
    expected = weight * (taken - pi) - multiplier * (pi - average)

    losses, report = agent.loss(rollout)
    (gradient,) = torch.autograd.grad(losses["acer"], agent.policy.heads.linear.bias)
    torch.testing.assert_close(-gradient[:3], expected, rtol=1e-9, atol=1e-12)
    active = report.compute_metrics()["train/trust_region_fraction"].item()
    assert active == float(multiplier > 0)
    assert active == (reward < 0)  # k g is positive if the taken action gets less probable
