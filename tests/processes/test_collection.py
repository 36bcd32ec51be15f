"""Weights as one flat array: an actor receives them bit for bit, and acts with them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from algorithm.processes.service import pack_weights
from algorithm.rollout import Rollout
from tests.checkpointing.test_resume import SETTINGS
from tests.processes.test_cluster_runtime import CHAIN, on_ray, record_rollouts, train

# Its observations are normalized; those of a probe are one-hot, and are not.
CARTPOLE = {"base_config": {"algorithm": "A2C", "env_type": "GYM", "env_name": "CartPole-v1"}}


@pytest.fixture
def normalizing(tmp_path):
    """Let the network of runs below `tmp_path` normalize observations."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "nn.py").write_text(
        "from algorithm.networks import Blueprint, Mlp, Vector\n"
        "blueprint = Blueprint(encoders={'*': Vector(normalize=True)}, body=Mlp(8))\n"
    )


def test_statistics_of_all_actors_are_merged(hosts, tmp_path, monkeypatch, normalizing):
    rollouts = record_rollouts(monkeypatch)
    _, folder, _ = train(tmp_path, "run", SETTINGS, CARTPOLE, on_ray(actors=2))
    rows = np.concatenate([rollout.obs["obs"][:-1][rollout.valid] for rollout in rollouts]).astype(np.float64)
    assert {lane // 3 for rollout in rollouts for lane in rollout.lane} == {0, 1}
    saved = folder.find_latest().weights("agent")["statistics"]
    (statistics,) = [values.numpy() for name, values in saved.items() if name.startswith("obs/")]
    deviations = ((rows - rows.mean(0)) ** 2).sum(0)
    expected = np.concatenate([rows.mean(0), deviations, [len(rows)]])
    np.testing.assert_allclose(statistics, expected, rtol=1e-9)
    # Each actor has the statistics of a version of the learner, and so of both actors.
    for handle in hosts[0].handles:
        received = handle.service.training.by_role["agent"].learner.parameters.statistics.numpy()
        assert len(rows) / 2 < received[-1] <= len(rows)


def test_an_actor_receives_parameters_and_statistics_bit_for_bit(hosts, tmp_path, normalizing):
    train(tmp_path, "run", SETTINGS, CARTPOLE, on_ray(actors=1, max_lag=0))
    (handle,) = hosts[0].handles
    learner = handle.service.training.by_role["agent"].learner
    packed = pack_weights(learner.parameters, with_targets=False)
    assert packed.dtype == np.float32
    assert learner.parameters.statistics.dtype == torch.float64
    assert learner.parameters.statistics.abs().sum() > 0

    changed = packed.copy()
    changed[: len(learner.parameters.vector)] += 1
    changed.view(np.uint32)[-1] ^= 1  # a high bit of the last statistic
    changed.setflags(write=False)
    learner.receive(changed, 7, 11)
    assert (learner.updates, learner.rows_seen) == (7, 11)
    np.testing.assert_array_equal(
        pack_weights(learner.parameters, with_targets=False).view(np.uint32), changed.view(np.uint32)
    )


def test_columns_of_rollouts_are_joined(hosts, tmp_path, monkeypatch):
    rollouts = record_rollouts(monkeypatch)
    train(tmp_path, "run", SETTINGS, CHAIN, on_ray(actors=1))
    first, second = rollouts[:2]
    joined = Rollout.join_columns([first, second])
    for part, columns in ((first, np.arange(3)), (second, np.arange(3, 6))):
        taken = joined.take_columns(columns)
        for name in ("first", "raw_action", "reward", "alive", "behavior", "memory", "lane", "version"):
            np.testing.assert_array_equal(getattr(taken, name), getattr(part, name))
        np.testing.assert_array_equal(taken.obs["obs"], part.obs["obs"])
    assert Rollout.join_columns([first]) is first
