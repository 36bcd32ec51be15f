"""Atari games give the same Steps in every vectorization mode."""

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from algorithm.adapters.adapter import EnvironmentStartError
from algorithm.adapters.atari import AtariAdapter
from tests.adapters.configs import config, opened
from tests.adapters.contract import assert_groups_play_the_same, drive, make_contract

pytest.importorskip("ale_py")
pytest.importorskip("cv2")

NATIVE, SYNC, ASYNC, ENVPOOL = "vector_entry_point", "sync", "async", "envpool"
PLAIN = {"repeat_action_probability": 0, "noop_max": 1}  # nothing is random


@pytest.fixture(params=[NATIVE, SYNC, ENVPOOL])
def how(request):
    if request.param == ENVPOOL:
        pytest.importorskip("envpool")
    return request.param


def atari(how, n_envs=2, name="Breakout", limit=None, **env_args):
    return opened(AtariAdapter(config(name, n_envs, {"vectorization_mode": how, **env_args}, limit)))


TestNative = make_contract(lambda: atari(NATIVE, limit=9), ticks=24)
TestSyncSameStep = make_contract(
    lambda: atari(SYNC, limit=9, vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP}), ticks=24
)
TestEnvPool = make_contract(lambda: atari(ENVPOOL, limit=9), ticks=24, package="envpool")


def play(adapter, ticks, seed=3, action=None):
    """Return the frames [lanes, ...], first, is_bootstrap_row, alive and reward of every tick."""
    steps = drive(adapter, ticks, seed, action)[:-1]
    columns = [[getattr(step, name) for step in steps] for name in ("first", "is_bootstrap_row", "alive", "reward")]
    return [[step.obs["obs"].astype(int) for step in steps], *columns]


@pytest.mark.parametrize("mode", [NATIVE, ENVPOOL])
def test_groups_have_the_episodes_of_undivided_environments(mode):
    if mode == ENVPOOL:
        pytest.importorskip("envpool")
    assert_groups_play_the_same(AtariAdapter, config("Breakout", 3, {"vectorization_mode": mode}, 9), 2)


def test_a_frame_is_84_by_84_gray_bytes(how):
    adapter = atari(how)
    role = adapter.roles["agent"]
    assert (role.obs_specs["obs"].shape, role.obs_specs["obs"].dtype) == ((1, 84, 84), "uint8")
    assert role.action_spec.branches == (4,)
    obs = adapter.reset(0)["agent"].obs["obs"]
    assert obs.dtype == np.uint8
    assert obs.reshape(2, 84, 84).max() > 100


def test_all_modes_truncate_at_the_same_steps(how):
    _, first, final, alive, _ = play(atari(how, limit=7), 30)
    assert [i for i, row in enumerate(first) if row.all()] == [0, 8, 16, 24]
    assert [i for i, row in enumerate(final) if row.all()] == [7, 15, 23]
    assert np.array(alive).all()


def test_all_modes_terminate_when_the_game_is_over(how):
    """A player of Breakout who only presses the fire button loses its five balls."""
    _, first, final, alive, _ = play(atari(how, 1, **PLAIN), 150, action=1)
    (over,) = np.flatnonzero(final)
    assert 80 < over < 140
    assert np.flatnonzero(~np.array(alive)).tolist() == [over]
    assert np.flatnonzero(first).tolist() == [0, over + 1]


def test_the_native_mode_gives_the_frames_of_gymnasium():
    settings = {"repeat_action_probability": 0, "noop_max": 0}
    for other in ({}, {"frame_skip": 1, "screen_size": [40, 60]}, {"frame_skip": 2, "grayscale_obs": False}):
        ways = [play(atari(way, 1, limit=15, **settings, **other), 35) for way in (NATIVE, SYNC)]
        for native, sync in zip(*ways, strict=True):
            np.testing.assert_array_equal(native, sync, str(other))


def test_a_lost_life_counts_as_a_termination_if_set_and_the_game_continues(how):
    """A player of Breakout who only presses the fire button loses its five balls."""
    ways = [{}, {"vector_kwargs": {"autoreset_mode": AutoresetMode.SAME_STEP}}] if how == SYNC else [{}]
    for further in ways:
        adapter = atari(how, 1, terminal_on_life_loss=True, **PLAIN, **further)
        _, first, final, alive, _ = play(adapter, 140, action=1)
        ends = np.flatnonzero(~np.array(alive)).tolist()
        assert len(ends) == 5 and ends[0] < 40 and min(np.diff(ends)) > 10
        starts = np.flatnonzero(first).tolist()
        assert starts == [0, ends[-1] + (not further)]
        assert np.flatnonzero(final).tolist() == ([] if further else ends[-1:])


def test_rewards_are_not_clipped(how):
    """The reward for an invader is 5 to 30."""
    *_, reward = play(atari(how, 1, "space_invaders"), 120, action=1)
    assert {5.0, 10.0, 15.0} & set(np.ravel(reward).tolist())


def test_lanes_and_seeds_differ(how):
    """The number of no-op steps at the start of an episode and sticky actions are random."""
    adapter = atari(how, 2, "Pong")
    last = [play(adapter, 25, seed)[0][-1] for seed in (3, 14, 3)]
    assert not (last[0][0] == last[0][1]).all()
    assert not (last[0] == last[1]).all()
    np.testing.assert_array_equal(last[0], last[2])


def test_large_seeds_are_accepted(how):
    assert atari(how, 1).reset(2**31 - 1)["agent"].first.all()


def test_worker_processes_give_steps():
    assert np.array(play(atari(ASYNC, 2, limit=4), 12)[2]).sum() == 4


@pytest.mark.parametrize("name", ["ALE/SpaceInvaders-v5", "space_invaders", "SpaceInvaders-v5"])
def test_a_game_is_found_by_several_names(name):
    assert opened(AtariAdapter(config(name))).roles["agent"].action_spec.branches == (6,)


def test_an_argument_that_ale_rejects_is_an_error_with_the_game():
    with pytest.raises(EnvironmentStartError, match="'ALE/Pong-v5' does not start: TypeError"):
        atari(NATIVE, name="Pong", vector_kwargs={"num_threads": "two"})
