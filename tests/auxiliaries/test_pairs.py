"""Augmented temporal contrast (InfoNCE with all valid targets as negatives) and bootstrap your own latent."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.auxiliaries.cases import compute_loss, make, make_learner, make_rollout


def info_nce(predicted, target, valid) -> float:
    """Return the mean loss of valid pairs by two literal loops."""
    losses = []
    for i in range(len(predicted)):
        if valid[i]:
            logits = [sum(p * t for p, t in zip(predicted[i], target[j], strict=True)) for j in range(len(target))]
            largest = max(logit for j, logit in enumerate(logits) if valid[j])
            total = sum(math.exp(logit - largest) for j, logit in enumerate(logits) if valid[j])
            losses.append(largest + math.log(total) - logits[i])
    return sum(losses) / len(losses) if losses else 0.0


@given(seed=st.integers(0, 2**31), n=st.integers(1, 8), scale=st.sampled_from([0.1, 1.0, 30.0]))
def test_the_loss_is_that_of_a_literal_loop(seed, n, scale):
    torch.manual_seed(seed)
    auxiliary = make("atc")
    auxiliary.build_heads(4)
    online, target, valid = scale * torch.randn(n, 5), scale * torch.randn(n, 5), torch.rand(n) < 0.7
    loss, metrics = auxiliary.compare(online, target, valid)
    with torch.no_grad():
        predicted = (online + auxiliary.predictor(online)) @ auxiliary.bilinear.weight.T
    expected = info_nce(predicted.double().tolist(), target.double().tolist(), valid)
    assert loss.item() == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert 0 <= metrics["accuracy"] <= 1


def test_known_answers():
    """With W the identity and no predictor, the loss of three orthogonal pairs with products 3 is log(1 + 2 e^-3)."""
    auxiliary = make("atc", latent_size=3)
    auxiliary.build_heads(4)
    with torch.no_grad():
        auxiliary.bilinear.weight.copy_(torch.eye(3))
        for parameter in auxiliary.predictor[1].parameters():
            parameter.zero_()
    pairs, valid = 3 * torch.eye(3), torch.ones(3, dtype=torch.bool)
    for target, loss, accuracy in [
        (torch.eye(3), math.log(1 + 2 * math.exp(-3)), 1),
        (torch.eye(3).roll(1, 0), math.log(2 + math.exp(3)), 0),
        (torch.ones(3, 3), math.log(3), 1 / 3),
    ]:
        result, metrics = auxiliary.compare(pairs, target, valid)
        assert result.item() == pytest.approx(loss, rel=1e-5)
        assert metrics["accuracy"].item() == pytest.approx(accuracy)


def test_the_default_network_has_the_sizes_of_its_settings():
    learner = make_learner(make("atc", units=7, latent_size=9))
    modules = learner.auxiliaries.modules["auxiliary/siamese"]
    shapes = {name: tuple(parameter.shape) for name, parameter in modules.named_parameters() if "weight" in name}
    assert list(shapes.values()) == [(9, 8), (7, 9), (9, 7), (9, 9)]


def test_the_loss_is_the_mean_of_valid_pairs():
    torch.manual_seed(0)
    auxiliary = make("byol")
    heads = auxiliary.build_heads(4)
    online, target = torch.randn(6, 5), torch.randn(6, 5)
    valid = torch.tensor([True, False, True, True, False, True])
    loss, _ = auxiliary.compare(online, target, valid)
    with torch.no_grad():
        predicted = heads["predictor"](online)
        expected = [2 - 2 * torch.cosine_similarity(predicted[i], target[i], dim=0) for i in (0, 2, 3, 5)]
    torch.testing.assert_close(loss, torch.stack(expected).mean())


def test_the_spread_of_targets():
    auxiliary = make("byol", latent_size=2)
    auxiliary.build_heads(4)
    valid = torch.ones(4, dtype=torch.bool)
    around = torch.tensor([[1.0, 0], [0, 2.0], [-3.0, 0], [0, -4.0]])
    for target, spread in [(around, 1), (torch.ones(4, 2), 0), (around.abs(), 0.5)]:
        assert auxiliary.compare(torch.randn(4, 2), target, valid)[1]["spread"].item() == pytest.approx(
            spread, abs=1e-6
        )


def test_the_symmetric_loss_is_the_mean_of_both_directions():
    """Without augmentation, the direction from x_t+1 to x_t is that of the observations in reverse order."""
    losses = []
    for symmetric in (False, True):
        torch.manual_seed(0)
        auxiliary = make("byol", steps=1, shift=0, symmetric=symmetric)
        learner = make_learner(auxiliary)
        rollout = make_rollout(learner.agent)
        rollout.first[:] = False
        losses.append(compute_loss(auxiliary, learner.agent, rollout))
    rollout.obs = {name: value[::-1].copy() for name, value in rollout.obs.items()}
    auxiliary.is_symmetric = False
    losses.append(compute_loss(auxiliary, learner.agent, rollout))
    torch.testing.assert_close(losses[1], (losses[0] + losses[2]) / 2)
    assert (losses[0] - losses[2]).abs() > 1e-3
