"""Normalization of observations: which rows count, and which networks use the statistics."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from algorithm.networks import Blueprint, Mlp, Vector
from algorithm.rollout import Step
from algorithm.specs import ActionSpec, ObsSpec, Role
from algorithm.training.learner import Learner
from tests.builders import make_acer, random_rollout, update
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


def shown(seed: int) -> dict[str, np.ndarray]:
    """Return the observations of one tick."""
    return {name: value[0] for name, value in rollout(seed).obs.items()}


def moments_of(network: nn.Module):
    return network.torso.encoders[0].transform.moments


def rows_of(*records) -> np.ndarray:
    """Return the observations of all valid rows [n, ...]."""
    return np.array(
        [
            record.obs["obs"][t, b]
            for record in records
            for t in range(len(record))
            for b in range(len(record.lane))
            if record.valid[t, b]
        ],
        np.float64,
    )


def encode(network: nn.Module, obs) -> torch.Tensor:
    return network.torso.encoders[0](torch.from_numpy(obs))


def test_every_valid_collected_row_counts_once_and_replayed_rows_do_not():
    learner, records = make_learner(), [rollout(seed) for seed in range(5)]
    for record in records:
        learner.observe(record)
        for _ in range(2):
            update(learner, record)
        update(learner, rollout(99))
    rows, moments = rows_of(*records), moments_of(learner.agent.policy)
    assert moments.count == learner.rows_seen == len(rows)
    np.testing.assert_allclose(moments.mean, rows.mean(0), rtol=1e-10)
    np.testing.assert_allclose(moments.std, rows.std(0), rtol=1e-10)


def test_rows_that_are_not_valid_change_nothing():
    learner, changed, record = make_learner(), make_learner(), rollout(0)
    assert not record.valid.all()
    obs = record.obs["obs"].copy()
    obs[:-1][~record.valid] = 1e9
    obs[-1] = -1e9
    learner.observe(record)
    changed.observe(replace(record, obs={**record.obs, "obs": obs}))
    assert changed.parameters.statistics.equal(learner.parameters.statistics)


def test_the_average_network_and_the_acting_policy_share_the_statistics():
    learner = make_learner()
    agent, obs = learner.agent, rollout(50).obs["obs"][0]
    before = encode(agent.policy, obs)
    for seed in range(3):
        learner.observe(rollout(seed))
        assert encode(agent.average_policy.network, obs).equal(encode(agent.policy, obs))
        update(learner, rollout(seed))
        no = np.zeros(4, bool)
        seen = {"obs": obs, "seen": np.ones((4, 2), np.uint8)}
        step = Step(lane=np.arange(4), obs=seen, first=no, is_bootstrap_row=no, reward=no, alive=no)
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


def test_updates_keep_the_flat_tensors():
    learner = make_learner()
    networks = (learner.agent.policy, learner.agent.average_policy.network)
    places = [buffer.data_ptr() for network in networks for buffer in network.buffers()]
    begin, numbers = learner.parameters.statistics.data_ptr(), len(learner.parameters.statistics)
    assert len(places) == 6
    assert all(begin <= place < begin + 8 * numbers for place in places)
    learner.observe(rollout(0))
    update(learner, rollout(0))
    learner.load_parameters(learner.parameters.state())
    learner.observe(rollout(1))
    assert [buffer.data_ptr() for network in networks for buffer in network.buffers()] == places


def test_a_resumed_learner_continues_with_the_statistics():
    learner, resumed = make_learner(), make_learner(seed=1)
    for seed in range(3):
        learner.observe(rollout(seed))
        update(learner, rollout(seed))
    obs, none = shown(7), np.zeros((4, 0), np.float32)
    resumed.agent.policy.act(obs, none)  # so that acting has made its views
    resumed.parameters.load(learner.parameters.state())
    resumed.restore(learner.state())
    np.testing.assert_array_equal(resumed.agent.policy.act(obs, none)[0], learner.agent.policy.act(obs, none)[0])
    for one in (learner, resumed):
        one.observe(rollout(3))
        update(one, rollout(3))
    assert resumed.parameters.vector.equal(learner.parameters.vector)
    assert resumed.parameters.statistics.equal(learner.parameters.statistics)


def test_updates_do_not_change_the_statistics():
    learner = make_learner(reward_normalization="return_std")
    learner.observe(rollout(0))
    before = learner.parameters.statistics.clone()
    poisoned = rollout(1)
    poisoned.reward[:] = np.nan
    for record in (rollout(1), poisoned, rollout(2)):
        update(learner, record)
    assert learner.skipped_updates == 1
    assert learner.parameters.statistics.equal(before)


def test_statistics_of_another_network_are_rejected():
    plain = make_learner(Blueprint(body=Mlp(16)))
    with pytest.raises(ValueError, match="statistics 'obs/acer' are missing"):
        make_learner().parameters.load(plain.parameters.state())
    assert list(plain.parameters.statistics_slices) == ["returns"]


def test_the_gradient_does_not_depend_on_the_units_of_observations():
    scaled, plain = make_learner(max_grad_norm=1e9), make_learner(max_grad_norm=1e9)
    record = rollout(0)
    other = replace(record, obs={**record.obs, "obs": record.obs["obs"] * np.float32(1024) - 512})
    for learner, one in ((plain, record), (scaled, other)):
        learner.observe(one)
        update(learner, one)
    torch.testing.assert_close(scaled.parameters.gradient, plain.parameters.gradient, rtol=1e-3, atol=1e-5)
