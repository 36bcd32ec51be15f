"""Bootstrap your own latent: its loss, the symmetric form, and the spread of targets."""

from __future__ import annotations

import pytest
import torch

from tests.auxiliaries.cases import compute_loss, make, make_learner, make_rollout


def test_the_loss_is_the_mean_of_valid_pairs_and_descent_aligns_the_directions():
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
    optimizer = torch.optim.Adam(heads.parameters(), 0.01)
    for _ in range(100):
        optimizer.zero_grad()
        auxiliary.compare(online, target, valid)[0].backward()
        optimizer.step()
    assert auxiliary.compare(online, target, valid)[0] < 0.3 * loss


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
