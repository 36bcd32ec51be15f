"""Sequences of demonstrations: rows in their order, a memory of 0, the same for a number, a share of batches."""

from __future__ import annotations

import numpy as np
import pytest

from algorithm.agents.agent import DataSchedule
from algorithm.demonstrations import Demonstrations
from algorithm.replay import DemonstrationReplay, Replay
from algorithm.rollout import DEMONSTRATED
from algorithm.training.batch_scheduler import DemonstrationShare, ReplayScheduler
from tests.builders import make_role, random_rollout

LENGTHS = (5, 1, 7, 4)


def make_demonstrations(lengths=LENGTHS, is_cut=(False, True, False, True)) -> Demonstrations:
    """Return episodes of these lengths, whose row n has the observation, the action and the reward n."""
    total, first = sum(lengths), np.zeros(sum(lengths), bool)
    first[np.cumsum((0, *lengths[:-1]))] = True
    alive, number = np.ones(total, bool), np.arange(total, dtype=np.float32)
    for end, cut in zip(np.cumsum(lengths), is_cut, strict=True):
        alive[end - 1] = cut
    return Demonstrations(
        role=make_role(lanes=1, size=1, actions=100),
        obs={"obs": number[:, None]},
        action=number[:, None],
        reward=number,
        alive=alive,
        first=first,
        is_bootstrap_row=np.zeros(total, bool),
    )


def make_replay(length: int = 3, burn_in: int = 0, stored: int = 0, **changes) -> DemonstrationReplay:
    fields = {
        "demonstrations": make_demonstrations(),
        "seed": 3,
        "length": length,
        "burn_in": burn_in,
        "warmup_rows": 0,
        "state_size": stored,
        "stored_state_size": stored,
        "statistics_size": 4,
        "from_action": lambda action: action + 0.5,
    }
    return DemonstrationReplay(**{**fields, **changes})


@pytest.mark.parametrize("stored", [0, 2])
@pytest.mark.parametrize(("length", "burn_in"), [(1, 0), (3, 0), (4, 2), (17, 0)])
def test_sequences_are_rows_in_their_order(length, burn_in, stored):
    replay, rows = make_replay(length, burn_in, stored), set()
    for number in range(30):
        batch = replay.sample(8, number)
        obs = batch.obs["obs"][..., 0]
        assert obs.shape == (burn_in + length + 1, 8) and batch.burn_in == burn_in
        assert (np.diff(obs[:-1], axis=0) == 1).all()
        np.testing.assert_array_equal(batch.raw_action[..., 0], obs[:-1] + 0.5)
        np.testing.assert_array_equal(batch.reward, obs[:-1])
        starts = np.isin(obs[:-1], np.cumsum((0, *LENGTHS)))
        np.testing.assert_array_equal(batch.first[:-1], starts)
        assert (batch.index == DEMONSTRATED).all() and not batch.memory.any() and not batch.behavior.any()
        rows |= set(obs[burn_in:-1].ravel().tolist())
    cut = {5, 16}  # rows before an episode that does not follow them, alone in a sequence, are not learned from
    assert rows >= {*range(burn_in, 17)} - cut


def test_the_last_row_of_a_truncated_episode_is_not_valid_and_that_of_a_terminated_one_is():
    batch = make_replay(17).sample(1, 0)
    invalid = np.flatnonzero(~batch.valid[:, 0])
    assert invalid.tolist() == [5, 16]


def test_a_number_gives_the_same_batch_and_other_numbers_others():
    one, two = make_replay(), make_replay()
    np.testing.assert_array_equal(one.sample(8, 4).reward, two.sample(8, 4).reward)
    assert (one.sample(8, 4).reward != one.sample(8, 5).reward).any()
    assert (one.sample(8, 4).reward != make_replay(seed=4).sample(8, 4).reward).any()


def test_too_few_steps_are_an_error():
    with pytest.raises(ValueError, match="they have 17 steps, and a sequence has 18"):
        make_replay(16, burn_in=2)


@pytest.mark.parametrize(
    ("share", "expected"), [(0.5, [4, 4]), (0.2, [1, 2]), (0.1, [0, 1]), (0.99, [7, 7]), (None, [4, 4])]
)
def test_a_share_of_each_batch_is_from_demonstrations(share, expected):
    rng = np.random.default_rng(0)
    replay = Replay(capacity=200, lanes=4, chunk=4, length=3, rng=rng)
    schedule = DataSchedule(rollout_length=4, sequence_length=3, batch_size=8, replay_ratio=2, on_policy_updates=False)
    rollout = random_rollout(rng, rows=4, size=1, actions=4)

    def make() -> ReplayScheduler:
        demonstrations = DemonstrationShare(make_replay(demonstrations=make_demonstrations()), share)
        return ReplayScheduler(replay, schedule, np.random.default_rng(1), None, demonstrations)

    scheduler = make()
    batches = list(scheduler(rollout))  # 16 rows: as many as there are demonstrated ones
    assert [(batch.index == DEMONSTRATED).sum() for batch in batches] == expected
    for batch in batches:
        assert len(batch.lane) == 8
        assert batch.reward.shape == (3, 8) and batch.obs["obs"].shape == (4, 8, 1)
    assert scheduler.state()["demonstration_batches"] == np.count_nonzero(expected)
    resumed = make()
    resumed.restore(scheduler.state())
    next_one, same = ([each.demonstrations.sample(8, replay) for _ in range(2)] for each in (scheduler, resumed))
    assert [one is None for one in next_one] == [one is None for one in same]
    np.testing.assert_array_equal(next_one[1].reward, same[1].reward)
