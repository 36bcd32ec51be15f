"""The settings of ACER in the agent's parts."""

import pytest

from algorithm.networks import Blueprint
from algorithm.specs import ActionSpec, ObsSpec, Role
from tests.builders import acer_settings, make_acer


@pytest.mark.parametrize(("shape", "replays"), [((5,), 32), ((3, 7, 7), 32), ((3, 8, 8), 4)])
def test_each_step_is_replayed_equally_often_without_a_replay_ratio(shape, replays):
    role = Role(1, {"obs": ObsSpec(shape)}, ActionSpec(branches=(2,)))
    schedule = make_acer(role, Blueprint(), replay_ratio=None, batch_size=16, sequence_length=20).schedule
    for rows in (1, 160, 320):
        assert schedule.count_batches(rows) * 16 * 20 == pytest.approx(replays * rows)
    assert make_acer(replay_ratio=1.5).schedule.count_batches(320) == 1.5


def test_rewards_without_a_scale_are_divided_by_the_standard_deviation_of_returns():
    expected = make_acer(reward_scale=1.0, reward_normalization="return_std").reward_transform
    assert make_acer(reward_scale=None, reward_normalization=None).reward_transform == expected


def test_settings_without_any_batch_are_rejected():
    with pytest.raises(ValueError, match="replay_ratio 0 with on_policy_updates false"):
        acer_settings(replay_ratio=0, on_policy_updates=False)
    for changes in ({}, {"on_policy_updates": False}, {"replay_ratio": 0}):
        acer_settings(**changes)
