"""Parts of ACER's loss: its metrics, and the trust region in probabilities with a critic of state values."""

import numpy as np
import pytest
import torch

from tests.agents.literal import GAMMA, estimate_by_definition
from tests.builders import make_exact_acer, random_rollout, to_float64
from tests.oracles import explain_variance


def test_metrics_are_means_over_valid_rows():
    agent = make_exact_acer(
        gamma=GAMMA, estimator="n_step", critic="state_value", trust_region="off", importance_clip=1.2
    )
    rollout = to_float64(random_rollout(np.random.default_rng(0)))
    logits, values = agent.policy.compute_outputs(rollout.obs["obs"]).detach().split([3, 1], -1)
    average = agent.average_policy.network.compute_outputs(rollout.obs["obs"]).detach()[:-1, :, :3].log_softmax(-1)
    log_pi, log_mu = logits[:-1].log_softmax(-1), rollout.behavior.log_softmax(-1)
    log_ratio = (log_pi - log_mu).gather(-1, rollout.raw_action.long()).squeeze(-1)
    metrics = agent.loss(rollout)[1].compute_metrics()
    v, rho = values.squeeze(-1), log_ratio.exp()
    target = torch.from_numpy(estimate_by_definition(rollout, v.numpy(), 1.0))
    truncated = rho.clamp(max=1.2) * (target - v[:-1])
    expected = {
        "train/critic_loss": 0.5 * (target - v[:-1]) ** 2,
        "train/clip_fraction": (rho > 1.2).double(),
        "train/policy_objective": truncated * log_pi.gather(-1, rollout.raw_action.long()).squeeze(-1),
        "train/entropy": -(log_pi.exp() * log_pi).sum(-1),
        "train/kl_to_average": (average.exp() * (average - log_pi)).sum(-1),
        "train/importance_ratio": log_ratio.exp(),
        "train/value": values[:-1].squeeze(-1),
        "train/trust_region_fraction": torch.zeros_like(log_ratio),
    }
    assert metrics.keys() == {"train/explained_variance", *expected}
    explained = explain_variance(*(each[rollout.valid].numpy() for each in (target, v[:-1])))
    assert metrics["train/explained_variance"].item() == pytest.approx(explained)
    assert 0 < metrics["train/clip_fraction"] < 1
    for name, value in expected.items():
        assert metrics[name].item() == pytest.approx(value[rollout.valid].mean().item(), rel=1e-9), name


def test_the_trust_region_of_a_state_value_critic_in_probabilities():
    """Every step ends an episode, so that its target is its reward. Rewards of both signs, 3 rows and 4 columns.

    In probabilities g = rho A / pi(a) for the taken action (Eq. 9) and k = -average / pi (Eq. 11). The gradient of the
    logits is the gradient of rho A log pi(a), minus a multiple of pi - average.
    """
    delta, rows = 0.5, 3
    agent = make_exact_acer(
        seed=1,
        estimator="n_step",
        critic="state_value",
        entropy_coef=0.0,
        value_coef=0.0,
        trust_region_space="probs",
        trust_region_delta=delta,
    )
    rollout = to_float64(random_rollout(np.random.default_rng(0), rows))
    rollout.first[:], rollout.alive[:] = False, False
    rollout.reward[:] = 4 * torch.randn(rollout.reward.shape, generator=torch.manual_seed(0)).double()
    outputs = agent.policy.compute_outputs(rollout.obs["obs"]).detach()[:-1]
    average = agent.average_policy.network.compute_outputs(rollout.obs["obs"]).detach()[:-1, :, :3].softmax(-1)
    pi, mu = outputs[..., :3].softmax(-1), rollout.behavior.softmax(-1)
    taken = torch.nn.functional.one_hot(rollout.raw_action.long().squeeze(-1), 3).double()
    rho = (taken * pi / mu).sum(-1, keepdim=True).clamp(max=agent.settings.importance_clip)
    weight = rho * (rollout.reward.unsqueeze(-1) - outputs[..., 3:])

    g, k = weight * taken / pi, -average / pi
    multiplier = (((k * g).sum(-1, keepdim=True) - delta) / (k * k).sum(-1, keepdim=True)).clamp(min=0)
    expected = weight * (taken - pi) - multiplier * (pi - average)

    losses, report = agent.loss(rollout)
    (gradient,) = torch.autograd.grad(losses["acer"], agent.policy.heads.linear.bias)
    torch.testing.assert_close(-gradient[:3], expected.mean((0, 1)), rtol=1e-9, atol=1e-12)
    active = report.compute_metrics()["train/trust_region_fraction"].item()
    assert active == pytest.approx((multiplier > 0).double().mean().item())
    assert 0 < active < 1
