"""Weights as one flat array: an actor receives them bit for bit, and acts with them."""

from __future__ import annotations

import numpy as np
import torch

from algorithm.rollout import Rollout
from algorithm.runtimes.collection import pack_weights
from tests.checkpointing.test_resume import SETTINGS
from tests.runtimes.test_cluster import CHAIN, hosts, on_ray, record_rollouts, train  # noqa: F401


def test_an_actor_receives_parameters_and_statistics_bit_for_bit(hosts, tmp_path):  # noqa: F811
    source = tmp_path / "source"
    source.mkdir()
    (source / "nn.py").write_text(
        "from algorithm.networks import Blueprint, Mlp, Vector\n"
        "blueprint = Blueprint(encoders={'*': Vector(normalize=True)}, body=Mlp(8))\n"
    )
    base = {"base_config": {"algorithm": "A2C"}}
    train(tmp_path, "run", SETTINGS, CHAIN, base, on_ray(actors=1, max_lag=0))
    (handle,) = hosts[0].handles
    learner = handle.actor.training.by_role["agent"].learner
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


def test_columns_of_rollouts_are_joined(hosts, tmp_path, monkeypatch):  # noqa: F811
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
