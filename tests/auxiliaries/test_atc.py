"""Augmented temporal contrast: InfoNCE with the targets of all valid pairs as negatives."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.auxiliaries.cases import make, make_learner


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
