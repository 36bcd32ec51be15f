"""Atari games give the same Steps in every vectorization mode."""

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from algorithm.adapters.adapter import EnvironmentStartError, UnsupportedEnvironment
from algorithm.adapters.atari import AtariAdapter
from algorithm.adapters.wrappers import EnvGroups
from tests.adapters.configs import config
from tests.adapters.contract import make_contract, play_lanes

pytest.importorskip("ale_py")
pytest.importorskip("cv2")

FRAME = (84, 84)
NATIVE, SYNC, ASYNC, ENVPOOL = "vector_entry_point", "sync", "async", "envpool"
PLAIN = {"repeat_action_probability": 0, "noop_max": 1}  # nothing is random


@pytest.fixture(params=[NATIVE, SYNC, ENVPOOL])
def how(request):
    if request.param == ENVPOOL:
        pytest.importorskip("envpool")
    return request.param


def atari(how, n_envs=2, name="Breakout", limit=None, **env_args):
    return AtariAdapter(config(name, n_envs, {"vectorization_mode": how, **env_args}, limit))


TestNative = make_contract(lambda: atari(NATIVE, limit=9), ticks=24)
TestSyncSameStep = make_contract(
    lambda: atari(SYNC, limit=9, vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP}), ticks=24
)


TestEnvPool = make_contract(lambda: atari(ENVPOOL, limit=9), ticks=24, package="envpool")


def play(adapter, ticks, seed=3, action=None):
    """Return the frames [lanes, ...], first, is_bootstrap_row, alive and reward of every tick."""
    rng = np.random.default_rng(0)
    step, rows = adapter.reset(seed)["agent"], []
    for _ in range(ticks):
        rows.append(
            (next(iter(step.obs.values())).astype(int), step.first, step.is_bootstrap_row, step.alive, step.reward)
        )
        branch = adapter.roles["agent"].action_spec.branches[0]
        number = (
            rng.integers(branch, size=(len(step.lane), 1)) if action is None else np.full((len(step.lane), 1), action)
        )
        step = adapter.step({"agent": number.astype(np.float32)})["agent"]
    return [list(column) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize("mode", [NATIVE, ENVPOOL])
def test_groups_have_the_episodes_of_undivided_environments(mode):
    if mode == ENVPOOL:
        pytest.importorskip("envpool")
    games = config("Breakout", 3, {"vectorization_mode": mode}, 9)
    groups = EnvGroups(AtariAdapter, games, 2)
    assert play_lanes(groups, 12) == play_lanes(AtariAdapter(games), 12)
    groups.close()


def test_a_frame_is_84_by_84_gray_bytes(how):
    adapter = atari(how)
    role = adapter.roles["agent"]
    assert int(np.prod(role.obs_specs["obs"].shape)) == 84 * 84
    assert role.obs_specs["obs"].dtype == "uint8"
    assert role.action_spec.branches == (4,)
    obs = adapter.reset(0)["agent"].obs["obs"]
    assert obs.dtype == np.uint8
    assert obs.reshape(2, *FRAME).max() > 100
    adapter.close()


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


def test_a_lost_life_terminates_if_set():
    for way in (NATIVE, SYNC):
        _, _, final, alive, _ = play(atari(way, 1, terminal_on_life_loss=True, **PLAIN), 60, action=1)
        ends = np.flatnonzero(final).tolist()
        assert len(ends) == 2 and ends[0] < 40  # the first of five balls
        assert np.flatnonzero(~np.array(alive)).tolist() == ends


def test_rewards_are_not_clipped(how):
    """The reward for an invader is 5 to 30."""
    _, _, _, _, reward = play(atari(how, 1, "space_invaders"), 120, action=1)
    assert {5.0, 10.0, 15.0} & set(np.ravel(reward).tolist())


def test_lanes_and_seeds_differ(how):
    """The number of no-op steps at the start of an episode and sticky actions are random."""
    adapter = atari(how, 2, "Pong")
    last = [play(adapter, 25, seed)[0][-1] for seed in (3, 14, 3)]
    assert not (last[0][0] == last[0][1]).all()
    assert not (last[0] == last[1]).all()
    np.testing.assert_array_equal(last[0], last[2])


def test_large_seeds_are_accepted(how):
    adapter = atari(how, 1)
    assert adapter.reset(2**31 - 1)["agent"].first.all()
    adapter.close()


def test_worker_processes_give_steps():
    adapter = atari(ASYNC, 2, limit=4)
    _, _, final, _, _ = play(adapter, 12)
    adapter.close()
    assert np.array(final).sum() == 4


@pytest.mark.parametrize("name", ["ALE/SpaceInvaders-v5", "space_invaders", "SpaceInvaders-v5"])
def test_a_game_is_found_by_several_names(name):
    adapter = AtariAdapter(config(name, 1, {}))
    assert adapter.roles["agent"].action_spec.branches == (6,)
    adapter.close()


@pytest.mark.parametrize(
    ("name", "env_args", "message"),
    [
        ("Pnog", {}, "no Gymnasium environment has the name 'Pnog'; did you mean"),
        ("Pong-v4", {}, "'Pong-v4' is not one of the ids ALE/...-v5"),
        ("PongNoFrameskip-v4", {}, "'PongNoFrameskip-v4' is not one of the ids"),
        ("CartPole", {}, "'CartPole' is not one of the ids"),
        (lambda: None, {}, "env_type ATARI needs a name"),
        ("Pong", {"frameskip": 4}, "unknown setting env_args.frameskip; ATARI has frame_skip, full_action_space, "),
        ("Pong", {"grayscale_newaxis": True}, "unknown setting env_args.grayscale_newaxis; ATARI has"),
        ("Pong", {"noop_max": "many"}, "env_args.noop_max is 'many'; its default is 30"),
        ("Pong", {"noop_max": True}, "env_args.noop_max is True; its default is 30"),
        ("Pong", {"scale_obs": 1}, "env_args.scale_obs is 1; its default is False"),
        ("Pong", {"screen_size": [84]}, r"env_args.screen_size is \[84\]; its default is 84"),
        ("Pong", {"vectorization_mode": "threads"}, "'threads' is not one of sync, async, vector_entry_point, envpool"),
        ("Pong", {"vector_kwargs": {"autoreset_mode": "SameStep"}}, "autoreset_mode is for sync and async"),
    ],
)
def test_an_unsupported_configuration_is_an_error_of_one_line(name, env_args, message):
    with pytest.raises(UnsupportedEnvironment, match=message) as error:
        AtariAdapter(config(name, 1, env_args))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("env_args", [{"noop_max": 0}, {"terminal_on_life_loss": True}])
def test_a_setting_that_envpool_does_not_support_is_an_error(env_args):
    with pytest.raises(UnsupportedEnvironment, match="EnvPool supports neither"):
        atari(ENVPOOL, **env_args)


def test_a_timeout_needs_worker_processes():
    with pytest.raises(UnsupportedEnvironment, match="env_timeout is 3, but only worker processes"):
        AtariAdapter(config("Pong", 1, {}, timeout=3.0))


def test_an_argument_that_ale_rejects_is_an_error_with_the_game():
    with pytest.raises(EnvironmentStartError, match="'ALE/Pong-v5' does not start: TypeError"):
        AtariAdapter(config("Pong", 1, {"vector_kwargs": {"num_threads": "two"}}))
