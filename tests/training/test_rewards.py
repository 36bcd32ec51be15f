"""The transformation of rewards: clip, scale, and divide by a running statistic of returns."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from algorithm.agents.agent import RewardTransform
from algorithm.training.rewards import ReturnMoments, RewardNormalizer
from tests.builders import random_boundaries, random_rollout
from tests.oracles import returns_so_far

LANES = 4


def scaled(values, **changes):
    scaling = RewardTransform(**{"scale": 1.0, "clip": None, "reward_normalization": None, "gamma": 0.9, **changes})
    return RewardNormalizer(scaling, LANES).scale(torch.tensor(values))


def test_rewards_are_clipped_and_then_scaled():
    torch.testing.assert_close(scaled([-3.0, -0.7, 0.2, 5.0]), torch.tensor([-3.0, -0.7, 0.2, 5.0]))
    torch.testing.assert_close(scaled([-3.0, -0.7, 0.2, 5.0], clip=1.0), torch.tensor([-1.0, -0.7, 0.2, 1.0]))
    torch.testing.assert_close(
        scaled([-3.0, -0.7, 0.2, 5.0], clip=1.0, scale=0.1), torch.tensor([-0.1, -0.07, 0.02, 0.1])
    )


def collected(rng, rows=7):
    """Return a rollout with rewards far from 0, whose lanes are in any order, and some continue no previous rollout."""
    record = random_rollout(rng, rows, LANES)
    record.lane, record.continues_previous = rng.permutation(LANES), rng.random(LANES) < 0.7
    record.first, record.alive, final = random_boundaries(rng, rows, LANES)
    record.reward = np.where(final, 0, 3 + record.reward).astype(np.float32)
    return record


@pytest.mark.parametrize("clip", [None, 2.5])
def test_rewards_are_divided_by_the_std_of_the_returns_that_follow_each_row(clip):
    rng = np.random.default_rng(0)
    scale = RewardNormalizer(RewardTransform(scale=0.5, clip=clip, reward_normalization="return_std", gamma=0.9), LANES)
    episodes, current = [], {}  # of all lanes; the current one of each lane
    for record in (collected(rng) for _ in range(12)):
        scale.observe(record)
        reward = record.reward if clip is None else record.reward.clip(-clip, clip)
        for b, lane in enumerate(record.lane):
            for t in range(len(reward)):
                if record.first[t, b] or (t == 0 and not record.continues_previous[b]) or lane not in current:
                    current[lane] = []
                    episodes.append(current[lane])
                current[lane].append((float(reward[t, b]), bool(record.valid[t, b])))
        seen = returns_so_far(episodes, 0.9)
        assert scale.moments.count == len(seen)
        assert scale.moments.std.item() == pytest.approx(np.std(seen), rel=1e-9)
    expected = 0.5 * np.clip([1.0, -4.0], -clip, clip) if clip else np.array([0.5, -2.0])
    torch.testing.assert_close(
        scale.scale(torch.tensor([1.0, -4.0])), torch.from_numpy(expected / np.std(seen)).float()
    )


def test_a_reward_at_the_end_of_an_episode_counts_in_the_returns_of_all_its_rows():
    """Success or failure after 50 rows, half of the time: returns of 0.99^k and 0, whose scale is about 0.4.

    The discounted sum of the rewards so far is 1 in one row of 100 and 0 in all others: a scale of 0.1.
    """
    length, gamma = 50, 0.99
    record = random_rollout(np.random.default_rng(0), 2 * length, 1)
    record.first = np.zeros((2 * length + 1, 1), bool)
    record.first[[0, length, -1]] = True
    record.alive = np.ones((2 * length, 1), bool)
    record.alive[[length - 1, -1]] = False
    record.reward = np.zeros((2 * length, 1), np.float32)
    record.reward[-1] = 1
    scale = RewardNormalizer(
        RewardTransform(scale=1.0, clip=None, reward_normalization="return_std", gamma=gamma), LANES
    )
    scale.observe(record)
    returns = np.concatenate((np.zeros(length), gamma ** np.arange(length)))
    assert scale.moments.std.item() == pytest.approx(returns.std(), rel=1e-6)
    assert 0.39 < scale.moments.std.item() < 0.41


@pytest.mark.parametrize("rows", [0, 1, 40])
def test_equal_returns_leave_rewards_unchanged(rows):
    moments = ReturnMoments()
    moments.add(rows, rows * 0.1, rows * 0.1**2)
    assert moments.std == 1


def test_two_columns_of_one_lane_count_in_order_of_time():
    whole = random_rollout(np.random.default_rng(0), 6, 1)
    whole.first[:], whole.alive[:] = False, True
    halves = replace(
        whole,
        first=np.zeros((4, 2), bool),
        reward=np.hstack((whole.reward[:3], whole.reward[3:])),
        alive=np.ones((3, 2), bool),
        lane=np.zeros(2, int),
        continues_previous=np.ones(2, bool),
    )
    scales = [
        RewardNormalizer(RewardTransform(scale=1.0, clip=None, reward_normalization="return_std", gamma=0.9), LANES)
        for _ in range(2)
    ]
    for scale, record in zip(scales, (whole, halves), strict=True):
        scale.observe(record)
    assert scales[1].moments.std.item() == pytest.approx(scales[0].moments.std.item())
    np.testing.assert_allclose(scales[1].running_sums, scales[0].running_sums)


def test_added_lanes_count_as_lanes_that_existed_from_the_start():
    rng = np.random.default_rng(1)
    grown, large = (
        RewardNormalizer(RewardTransform(scale=1.0, clip=None, reward_normalization="return_std", gamma=0.9), lanes)
        for lanes in (LANES, LANES + 2)
    )
    for added in (0, 2):
        grown.grow(LANES + added)
        for record in (collected(rng) for _ in range(5)):
            record.lane[:added] = LANES + np.arange(added)
            for scale in (grown, large):
                scale.observe(record)
    assert grown.moments.std == large.moments.std
    np.testing.assert_array_equal(grown.running_sums, large.running_sums)
