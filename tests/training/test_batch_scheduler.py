"""The batches that are learned from: the collected rollout, and replayed sequences once there are enough rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from algorithm.replay import Replay
from algorithm.training.batch_scheduler import ReplayScheduler
from tests.builders import make_acer, make_role, random_rollout

LANES, ROWS = 4, 6


def feed_of(**changes) -> ReplayScheduler:
    agent = make_acer(make_role(LANES), rollout_length=ROWS, sequence_length=ROWS, batch_size=2, **changes)
    rng = np.random.default_rng(0)
    # A fixed number of batches for each rollout.
    return ReplayScheduler(
        Replay(capacity=96, lanes=LANES, chunk=ROWS, length=ROWS, rng=rng),
        replace(agent.schedule, replay_count_distribution="fixed"),
        rng,
    )


@pytest.mark.parametrize("on_policy_updates", [True, False])
def test_the_collected_rollout_is_a_batch_with_on_policy_updates_only(on_policy_updates):
    feed = feed_of(on_policy_updates=on_policy_updates, replay_ratio=3.0, learning_starts=0)
    for number in range(3):
        rollout = random_rollout(np.random.default_rng(number), ROWS, LANES)
        assert [batch is rollout for batch in feed(rollout)] == [True] * on_policy_updates + [False] * 3
        assert feed.replay.rows == LANES * ROWS * (number + 1)


def test_nothing_is_replayed_before_learning_starts():
    feed = feed_of(on_policy_updates=False, replay_ratio=1.0, learning_starts=60)
    counts = [len(list(feed(random_rollout(np.random.default_rng(0), ROWS, LANES)))) for _ in range(4)]
    assert counts == [0, 0, 1, 1]  # 24, 48, 72 rows
