"""The settings of ACER in the agent's parts."""

from dataclasses import asdict

import pytest

from algorithm.distributions import ClippedGaussianFamily, TanhGaussianFamily
from algorithm.networks import Blueprint, FrameStack, Gru, Mlp, Vector
from algorithm.specs import ActionSpec, ObsSpec, Role
from tests.builders import acer_settings, make_acer

# No two of them are equal.
SCHEDULE = {
    "rollout_length": 5,
    "sequence_length": 7,
    "batch_size": 3,
    "replay_ratio": 1.5,
    "learning_starts": 11,
    "on_policy_updates": False,
}


def test_the_schedule_follows_the_settings():
    blueprint = Blueprint(encoders={"*": FrameStack(3, Vector())}, body=Mlp(4), memory=Gru(2))
    schedule = asdict(make_acer(blueprint=blueprint, burn_in_step=4, **SCHEDULE).schedule)
    # A stack of 3 frames needs the 2 rows before a sequence, in addition to the burn-in of the memory.
    others = {"replay_count_distribution": "poisson", "burn_in": 6, "warmup_rows": 2}
    without_replay = {"uses_replay": True, "epochs": None, "minibatches": 1}
    others["replays"] = 32.0  # without effect
    assert schedule == {**SCHEDULE, **others, **without_replay}


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


def test_checkpoints_name_the_average_network_and_the_group():
    agent = make_acer()
    assert list(agent.target_networks) == ["average"] and list(agent.groups) == ["acer"]


@pytest.mark.parametrize(("tanh_squash", "family"), [(False, ClippedGaussianFamily), (True, TanhGaussianFamily)])
def test_tanh_squash_selects_how_actions_are_bounded(tanh_squash, family):
    role = Role(1, {"obs": ObsSpec((3,))}, ActionSpec(continuous=2))
    assert type(make_acer(role, tanh_squash=tanh_squash).family) is family


def test_settings_without_any_batch_are_rejected():
    with pytest.raises(ValueError, match="replay_ratio 0 with on_policy_updates false"):
        acer_settings(replay_ratio=0, on_policy_updates=False)
    for changes in ({}, {"on_policy_updates": False}, {"replay_ratio": 0}):
        acer_settings(**changes)
