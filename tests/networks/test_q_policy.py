from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from algorithm.distributions import MASKED_LOGIT, HybridFamily
from algorithm.networks import Blueprint, CriticEnsemble, GreedyQPolicy, Mlp, Torso
from algorithm.specs import ACTION_MASK, ObsSpec
from tests.networks.test_actor_critic import RunningSum

BRANCHES = {"one branch": (4,), "two branches": (3, 2), "three branches": (2, 3, 2)}
every_kind = pytest.mark.parametrize("branches", BRANCHES.values(), ids=BRANCHES)
ROWS = 200


def make(branches, epsilon=0.2, masked=False, memory=None) -> GreedyQPolicy:
    torch.manual_seed(0)
    family = HybridFamily(0, branches)
    specs = {"obs": ObsSpec((3,))} | ({ACTION_MASK: ObsSpec((sum(branches),), "uint8")} if masked else {})
    blueprint = Blueprint(body=Mlp(8), memory=memory)
    critics = CriticEnsemble(blueprint, Torso(blueprint, specs), 0, family.n_combinations, 3)
    for parameter in critics.parameters():
        nn.init.normal_(parameter)
    return GreedyQPolicy(critics, family, specs, epsilon)


def observed(branches, masked) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    obs = {"obs": rng.normal(size=(ROWS, 3)).astype(np.float32)}
    if masked:
        obs[ACTION_MASK] = (rng.random((ROWS, sum(branches))) < 0.6).astype(np.uint8)
        for start, count in zip(np.cumsum((0, *branches[:-1])), branches, strict=True):
            obs[ACTION_MASK][np.arange(ROWS), start + rng.integers(count, size=ROWS)] = 1
    return obs


def as_written(policy, branches, obs, epsilon) -> np.ndarray:
    """Return the probabilities of each branch, computed row by row and combination by combination."""
    allowed = obs.get(ACTION_MASK, np.ones((ROWS, sum(branches))))
    starts = np.cumsum((0, *branches[:-1]))
    with torch.no_grad():
        values = policy.critics(policy.torso.encode({"obs": torch.from_numpy(obs["obs"])})).numpy()
    probs = np.zeros((ROWS, sum(branches)))
    for row in range(ROWS):
        ranked = {}
        for place, indices in enumerate(product(*map(range, branches))):
            if all(allowed[row, start + index] for start, index in zip(starts, indices, strict=True)):
                ranked[indices] = sum(critic[row, place] for critic in values) / len(values)
        best = max(ranked, key=ranked.get)
        for start, count, index in zip(starts, branches, best, strict=True):
            free = allowed[row, start : start + count]
            probs[row, start : start + count] = epsilon * free / free.sum()
            probs[row, start + index] += 1 - epsilon
    return probs


@every_kind
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("epsilon", [0.0, 0.2, 1.0])
def test_it_takes_the_action_of_highest_mean_value_and_with_epsilon_any_action(branches, masked, epsilon):
    policy, obs = make(branches, epsilon, masked), observed(branches, masked)
    statistics, _ = policy.act(obs, np.zeros((ROWS, 0), np.float32))
    assert statistics.dtype == np.float32 and np.isfinite(statistics).all()
    np.testing.assert_allclose(np.exp(statistics), as_written(policy, branches, obs, epsilon), atol=1e-6)


@every_kind
def test_a_branch_with_all_actions_forbidden_counts_as_unmasked(branches):
    policy, obs = make(branches, 0.0, masked=True), observed(branches, True)
    obs[ACTION_MASK][:, : branches[0]] = 0
    free = {**obs, ACTION_MASK: obs[ACTION_MASK].copy()}
    free[ACTION_MASK][:, : branches[0]] = 1
    none = np.zeros((ROWS, 0), np.float32)
    modes = [policy.family.mode(policy.act(seen, none)[0]) for seen in (obs, free)]
    np.testing.assert_array_equal(*modes)


def test_the_masks_of_the_first_rows_of_longer_observations_are_used():
    policy, obs = make((3, 2), masked=True), observed((3, 2), True)
    rows = {name: torch.from_numpy(value).view(10, 20, -1) for name, value in obs.items()}
    features = policy.torso.encode({"obs": torch.from_numpy(obs["obs"])}).view(10, 20, -1)
    whole = policy.select_best(features, rows)
    assert whole.shape == (10, 20, 5)
    assert torch.equal(policy.select_best(features[:4], rows), whole[:4])
    assert torch.equal(
        policy.select_best(features[-1:], {name: value[-1:] for name, value in rows.items()}), whole[-1:]
    )


def test_its_memory_is_the_memory_of_its_torso():
    policy = make((3,), memory=RunningSum)
    obs, before = observed((3,), False), np.ones((ROWS, 8), np.float32)
    statistics, memory = policy.act(obs, before)
    assert policy.state_size == 8 and memory.shape == (ROWS, 8)
    other, _ = policy.act(obs, memory)
    assert (statistics != other).any()
    assert (statistics > MASKED_LOGIT / 2).all()
