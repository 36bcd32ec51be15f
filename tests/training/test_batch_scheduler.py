"""The batches that are learned from, with a replay and without one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from algorithm.agents.agent import DataSchedule
from algorithm.replay import Replay
from algorithm.rollout import Rollout
from algorithm.training.batch_scheduler import OnPolicyScheduler, ReplayScheduler
from tests.builders import make_acer, make_role, random_rollout

LANES, ROWS = 4, 6


def feed_of(**changes) -> ReplayScheduler:
    agent = make_acer(make_role(LANES), rollout_length=ROWS, sequence_length=ROWS, batch_size=2, **changes)
    rng, schedule = np.random.default_rng(0), replace(agent.schedule, replay_count_distribution="fixed")
    return ReplayScheduler(Replay(capacity=96, lanes=LANES, chunk=ROWS, length=ROWS, rng=rng), schedule, rng)


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


def make_on_policy_scheduler(epochs: int | None, minibatches: int, has_memory: bool = False) -> OnPolicyScheduler:
    schedule = DataSchedule(rollout_length=ROWS, uses_replay=False, epochs=epochs, minibatches=minibatches)
    return OnPolicyScheduler(
        schedule, prepare, has_memory=has_memory, initial_lanes=LANES, rng=np.random.default_rng(0)
    )


def prepare(rollout: Rollout) -> Rollout:
    """Return a prepared rollout, with the number of each row as its only target."""
    numbers = np.arange(ROWS * LANES, dtype=np.float32).reshape(ROWS, LANES)
    obs = {name: value[:-1] for name, value in rollout.obs.items()}
    return replace(rollout, obs=obs, targets={"number": numbers})


def collect_rollout() -> Rollout:
    rollout = random_rollout(np.random.default_rng(1), ROWS, LANES)
    assert not rollout.valid.all()
    return replace(rollout, memory=np.arange(2.0 * LANES, dtype=np.float32).reshape(LANES, 2))


def test_without_epochs_the_rollout_is_the_only_batch():
    scheduler, rollout = make_on_policy_scheduler(None, 1), collect_rollout()
    assert [batch is rollout for batch in scheduler(rollout)] == [True]
    assert scheduler.replay is None and scheduler.state() == scheduler.compute_metrics(rollout) == {}


@pytest.mark.parametrize("minibatches", [1, 4, 5])
def test_each_epoch_has_every_valid_row_once_in_a_new_order(minibatches):
    scheduler, rollout = make_on_policy_scheduler(3, minibatches), collect_rollout()
    batches = list(scheduler(rollout))
    assert len(batches) == 3 * minibatches
    orders = []
    for epoch in range(3):
        part = batches[epoch * minibatches : (epoch + 1) * minibatches]
        sizes = [batch.reward.shape[1] for batch in part]
        assert max(sizes) - min(sizes) <= 1
        orders.append(np.concatenate([batch.targets["number"][0] for batch in part]).astype(int).tolist())
        assert sorted(orders[-1]) == np.flatnonzero(rollout.valid).tolist()
    assert orders[0] != orders[1] != orders[2] != orders[0]


def test_the_rows_of_a_minibatch_are_those_of_the_rollout():
    rollout = collect_rollout()
    for batch in make_on_policy_scheduler(1, 4)(rollout):
        t, lane = np.divmod(batch.targets["number"][0].astype(int), LANES)
        for name in ("raw_action", "reward", "alive", "behavior"):
            np.testing.assert_array_equal(getattr(batch, name)[0], getattr(rollout, name)[t, lane])
        np.testing.assert_array_equal(batch.obs["obs"][0], rollout.obs["obs"][t, lane])
        np.testing.assert_array_equal(batch.first, np.stack((rollout.first[t, lane], rollout.first[t + 1, lane])))
        np.testing.assert_array_equal(batch.weight, rollout.weight[lane])
        assert batch.valid.all() and batch.memory.shape == (len(t), 0)


def test_with_a_memory_minibatches_are_whole_columns():
    scheduler, rollout = make_on_policy_scheduler(2, 2, has_memory=True), collect_rollout()
    batches = list(scheduler(rollout))
    lanes = [batch.lane.tolist() for batch in batches]
    assert [sorted(lanes[0] + lanes[1]), sorted(lanes[2] + lanes[3])] == [[0, 1, 2, 3]] * 2
    assert {len(part) for part in lanes} == {2}
    for batch, columns in zip(batches, lanes, strict=True):
        np.testing.assert_array_equal(batch.reward, rollout.reward[:, columns])
        np.testing.assert_array_equal(batch.obs["obs"], rollout.obs["obs"][:-1, columns])
        np.testing.assert_array_equal(batch.first, rollout.first[:, columns])
        np.testing.assert_array_equal(batch.memory, rollout.memory[columns])


def test_columns_without_valid_rows_and_empty_minibatches_are_left_out():
    rollout = collect_rollout()
    first, alive = rollout.first.copy(), rollout.alive.copy()
    first[:, 1:], alive[:, 1:] = True, True
    first[:, 0] = False
    batches = list(make_on_policy_scheduler(1, 3, has_memory=True)(replace(rollout, first=first, alive=alive)))
    assert [batch.lane.tolist() for batch in batches] == [[0]]


def test_a_rollout_is_prepared_once_and_before_the_first_update():
    scheduler, prepared = make_on_policy_scheduler(4, 2), []
    scheduler.prepare = lambda rollout: prepared.append(rollout) or prepare(rollout)
    rollout = collect_rollout()
    batches = scheduler(rollout)
    next(batches)
    assert prepared == [rollout]
    assert len(list(batches)) == 7 and len(prepared) == 1


def test_replayed_batches_have_the_fill_and_their_mean_age():
    """The age of a sequence is the number of transitions that were stored since its first one."""
    feed = feed_of(on_policy_updates=True, replay_ratio=1.0, learning_starts=0)
    for number in range(7):
        rollout = random_rollout(np.random.default_rng(number), ROWS, LANES)
        fresh, replayed = feed(rollout)
        fill = min(LANES * ROWS * (number + 1), 96 - LANES) / (96 - LANES)  # each lane reserves one row
        assert {name: value.item() for name, value in feed.compute_metrics(fresh).items()} == pytest.approx(
            {"train/replay_fill": fill}
        )
        metrics = feed.compute_metrics(replayed)
        lane, row = np.divmod(replayed.index, 1 << 40)
        assert metrics["train/replay_age"].item() == pytest.approx(LANES * np.mean(ROWS * (number + 1) - row))
        assert ROWS * LANES <= metrics["train/replay_age"] <= 96
    assert metrics["train/replay_fill"] == 1
