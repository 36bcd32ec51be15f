"""Normalization of observations: which rows count, and which networks use the statistics."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import nn

from algorithm.networks import Blueprint, Mlp, Vector
from algorithm.specs import ActionSpec, ObsSpec, Role
from algorithm.training.learner import Learner
from tests.builders import make_acer, make_step, random_rollout, update
from tests.fakes import TwoGroups, TwoGroupsSettings

SPECS = {"obs": ObsSpec((3,)), "seen": ObsSpec((2,), "uint8")}
ROLE = Role(4, SPECS, ActionSpec(branches=(3,)))
NORMALIZED = Blueprint(encoders={"*": Vector(normalize=True)}, body=Mlp(16))


def make_learner(blueprint=NORMALIZED, **changes) -> Learner:
    return Learner(make_acer(ROLE, blueprint, **changes), ROLE, {}, None)


def rollout(seed: int):
    """Return a collected rollout whose observations have a mean far from 0 and a std far from 1."""
    rng = np.random.default_rng(seed)
    record = random_rollout(rng)
    obs = (7 + record.obs["obs"] * np.array([0.1, 3, 40])).astype(np.float32)
    return replace(record, obs={"obs": obs, "seen": rng.integers(2, size=(7, 4, 2)).astype(np.uint8)})


def moments_of(network: nn.Module):
    return network.torso.encoders[0].transform.moments


def rows_of(*records) -> np.ndarray:
    """Return the observations of all valid rows [n, ...]."""
    return np.concatenate([record.obs["obs"][:-1][record.valid] for record in records]).astype(np.float64)


def encode(network: nn.Module, obs) -> torch.Tensor:
    return network.torso.encoders[0](torch.from_numpy(obs))


def test_every_valid_collected_row_counts_once_and_replayed_rows_do_not():
    learner, records = make_learner(), [rollout(seed) for seed in range(5)]
    poisoned = rollout(98)
    poisoned.reward[:] = np.nan
    for record in records:
        learner.observe(record)
        for replayed in (record, record, rollout(99), poisoned):
            update(learner, replayed)
    assert learner.skipped_updates == len(records)
    rows, moments = rows_of(*records), moments_of(learner.agent.policy)
    assert moments.count == learner.rows_seen == len(rows)
    np.testing.assert_allclose(moments.mean, rows.mean(0), rtol=1e-10)
    np.testing.assert_allclose(moments.std, rows.std(0), rtol=1e-10)


def test_the_average_network_and_the_acting_policy_share_the_statistics():
    learner = make_learner()
    agent, obs = learner.agent, rollout(50).obs["obs"][0]
    before = encode(agent.policy, obs)
    for seed in range(3):
        learner.observe(rollout(seed))
        assert encode(agent.average_policy.network, obs).equal(encode(agent.policy, obs))
        update(learner, rollout(seed))
        step = make_step({"obs": obs, "seen": np.ones((4, 2), np.uint8)})
        tensors = {name: torch.from_numpy(value) for name, value in step.obs.items()}
        expected = agent.policy(tensors, torch.zeros(4, 0))[0].detach()
        np.testing.assert_allclose(agent.act(step, np.zeros((4, 0), np.float32)).behavior, expected, atol=1e-6)
    assert not np.allclose(before, encode(agent.policy, obs))
    assert moments_of(agent.average_policy.network).mean.data_ptr() == moments_of(agent.policy).mean.data_ptr()


def test_every_network_of_an_agent_has_the_statistics():
    torch.manual_seed(0)
    agent = TwoGroups(TwoGroupsSettings(), NORMALIZED, ROLE, np.random.default_rng(0))
    learner, record = Learner(agent, ROLE, {}, None), rollout(0)
    learner.observe(record)
    update(learner, record)
    for network in (agent.policy, agent.critic, agent.target.network):
        np.testing.assert_allclose(moments_of(network).mean, rows_of(record).mean(0), rtol=1e-10)
    assert list(learner.parameters.statistics_slices) == ["returns", "obs/policy", "obs/critic"]


def test_the_gradient_does_not_depend_on_the_units_of_observations():
    scaled, plain = make_learner(max_grad_norm=1e9), make_learner(max_grad_norm=1e9)
    record = rollout(0)
    other = replace(record, obs={**record.obs, "obs": record.obs["obs"] * np.float32(1024) - 512})
    for learner, one in ((plain, record), (scaled, other)):
        learner.observe(one)
        update(learner, one)
    torch.testing.assert_close(scaled.parameters.gradient, plain.parameters.gradient, rtol=1e-3, atol=1e-5)
