"""The settings of ACER in the agent's parts."""

from dataclasses import replace

import numpy as np
import pytest

from algorithm.networks import Blueprint
from algorithm.replay import Replay
from algorithm.specs import ActionSpec, ObsSpec, Role
from algorithm.training.batch_scheduler import ReplayScheduler
from tests.agents.acer.literal import COLUMNS, ROWS, SPECS
from tests.builders import acer_settings, make_acer, make_role, random_rollout


@pytest.mark.parametrize(("shape", "replays"), [((5,), 32), ((3, 7, 7), 32), ((3, 8, 8), 4)])
def test_each_step_is_replayed_equally_often_without_a_replay_ratio(shape, replays):
    role = Role(1, {"obs": ObsSpec(shape)}, ActionSpec(branches=(2,)))
    schedule = make_acer(role, Blueprint(), replay_ratio=None, batch_size=16, sequence_length=20).schedule
    for rows in (1, 160, 320):
        assert schedule.count_batches(rows) * 16 * 20 == pytest.approx(replays * rows)
    assert make_acer(replay_ratio=1.5).schedule.count_batches(320) == 1.5


def test_replayed_batches_are_poisson_distributed_around_the_ratio():
    schedule = replace(make_acer(replay_ratio=4.0).schedule, sequence_length=2, batch_size=1, learning_starts=0)
    rng = np.random.default_rng(0)
    feed = ReplayScheduler(Replay(capacity=64, lanes=COLUMNS, chunk=ROWS, length=2, rng=rng), schedule, rng)
    rollout, n = random_rollout(rng, ROWS, COLUMNS), 3000
    feed(rollout)
    counts = np.array([sum(1 for _ in feed(rollout)) - 1 for _ in range(n)])  # the collected rollout is the first batch
    assert abs(counts.mean() - 4) <= 3 * 2 / np.sqrt(n)
    none = np.exp(-4)
    assert abs((counts == 0).mean() - none) <= 3 * np.sqrt(none * (1 - none) / n)
    # The variance of the sample variance of n Poisson numbers is (4 + 2 * 4^2) / n.
    assert abs(counts.var() - 4) <= 3 * np.sqrt(36 / n)


def test_rewards_without_a_scale_are_divided_by_the_standard_deviation_of_returns():
    expected = make_acer(reward_scale=1.0, reward_normalization="return_std").reward_transform
    assert make_acer(reward_scale=None, reward_normalization=None).reward_transform == expected


FOR_STATE_VALUES = "needs action values; with critic state_value use one of vtrace, n_step"


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("discrete", {"replay_ratio": 0, "on_policy_updates": False}, "replay_ratio 0 with on_policy_updates false"),
        ("discrete", {"estimator": "vtrace", "rho_clip": 0.5}, "rho_clip 0.5 must not be below trace_clip 1.0"),
        *(
            ("discrete", {"estimator": estimator, "critic": "state_value"}, f"{estimator} {FOR_STATE_VALUES}")
            for estimator in ("retrace", "tree_backup", "q_lambda")
        ),
        *(
            (kind, {"trust_region_space": "probs"}, "trust_region_space probs needs a single discrete branch")
            for kind in ("box", "branches", "hybrid")
        ),
    ],
)
def test_impossible_settings_are_rejected(kind, changes, message):
    with pytest.raises(ValueError, match=message):
        make_acer(make_role(spec=SPECS[kind]), **changes)


def test_settings_that_another_one_leaves_without_effect_are_accepted():
    for changes in ({"rho_clip": 0.5}, {"on_policy_updates": False}, {"replay_ratio": 0}):
        acer_settings(**changes)
