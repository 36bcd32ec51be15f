"""Atari shows the same in every way to vectorize it."""

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from algorithm.adapters.adapter import EnvironmentStartError, UnsupportedEnvironment
from algorithm.adapters.atari import AtariAdapter
from tests.adapters.configs import config
from tests.adapters.contract import AdapterContract

pytest.importorskip("ale_py")
pytest.importorskip("cv2")

FRAME = (84, 84)
NATIVE, SYNC, ASYNC, ENVPOOL = "vector_entry_point", "sync", "async", "envpool"
PLAIN = {"repeat_action_probability": 0, "noop_max": 1}  # nothing is drawn that the copies could differ by


@pytest.fixture(params=[NATIVE, SYNC, ENVPOOL])
def how(request):
    if request.param == ENVPOOL:
        pytest.importorskip("envpool")
    return request.param


def atari(how, copies=2, name="Breakout", limit=None, **env_args):
    return AtariAdapter(config(name, copies, {"vectorization_mode": how, **env_args}, limit))


class TestNative(AdapterContract):
    ticks = 24

    def make(self):
        return atari(NATIVE, limit=9)


class TestSyncSameStep(AdapterContract):
    ticks = 24

    def make(self):
        return atari(SYNC, limit=9, vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP})


class TestEnvPool(AdapterContract):
    ticks = 24

    @classmethod
    def setup_class(cls):
        pytest.importorskip("envpool")
        super().setup_class()

    def make(self):
        return atari(ENVPOOL, limit=9)


def played(adapter, ticks, seed=3, action=None):
    """Every tick's frames as [lanes, ...] of numbers, and the flags and rewards of its rows."""
    rng = np.random.default_rng(0)
    step, shown = adapter.reset(seed)["agent"], []
    for _ in range(ticks):
        shown.append(
            (next(iter(step.obs.values())).astype(int), step.first, step.is_bootstrap_row, step.alive, step.reward)
        )
        branch = adapter.roles["agent"].action_spec.branches[0]
        number = (
            rng.integers(branch, size=(len(step.lane), 1)) if action is None else np.full((len(step.lane), 1), action)
        )
        step = adapter.step({"agent": number.astype(np.float32)})["agent"]
    return [list(column) for column in zip(*shown, strict=True)]


def test_a_frame_is_84_by_84_bytes_of_grey(how):
    adapter = atari(how)
    role = adapter.roles["agent"]
    assert int(np.prod(role.obs_specs["obs"].shape)) == 84 * 84
    assert role.obs_specs["obs"].dtype == "uint8"
    assert role.action_spec.branches == (4,)
    obs = adapter.reset(0)["agent"].obs["obs"]
    assert obs.dtype == np.uint8
    assert obs.reshape(2, *FRAME).max() > 100
    adapter.close()


def test_all_ways_cut_at_the_same_steps(how):
    _, first, final, alive, _ = played(atari(how, limit=7), 30)
    assert [i for i, row in enumerate(first) if row.all()] == [0, 8, 16, 24]
    assert [i for i, row in enumerate(final) if row.all()] == [7, 15, 23]
    assert np.array(alive).all()


def test_all_ways_end_an_episode_when_the_game_is_over(how):
    """Breakout with nothing but the fire button loses its five balls."""
    _, first, final, alive, _ = played(atari(how, 1, **PLAIN), 150, action=1)
    (over,) = np.flatnonzero(final)
    assert 80 < over < 140
    assert np.flatnonzero(~np.array(alive)).tolist() == [over]
    assert np.flatnonzero(first).tolist() == [0, over + 1]


def test_ales_own_way_shows_what_gymnasiums_shows():
    settings = {"repeat_action_probability": 0, "noop_max": 0}
    for other in ({}, {"frame_skip": 1, "screen_size": [40, 60]}, {"frame_skip": 2, "grayscale_obs": False}):
        ways = [played(atari(way, 1, limit=15, **settings, **other), 35) for way in (NATIVE, SYNC)]
        for native, sync in zip(*ways, strict=True):
            np.testing.assert_array_equal(native, sync, str(other))


def test_a_lost_life_ends_the_game_if_asked():
    for way in (NATIVE, SYNC):
        _, _, final, alive, _ = played(atari(way, 1, terminal_on_life_loss=True, **PLAIN), 60, action=1)
        ends = np.flatnonzero(final).tolist()
        assert len(ends) == 2 and ends[0] < 40  # the first of five balls
        assert np.flatnonzero(~np.array(alive)).tolist() == ends


def test_rewards_come_as_the_game_gives_them(how):
    """Space Invaders pays 5 to 30 for each of the invaders."""
    _, _, _, _, reward = played(atari(how, 1, "space_invaders"), 120, action=1)
    assert {5.0, 10.0, 15.0} & set(np.ravel(reward).tolist())


def test_lanes_and_seeds_differ(how):
    """By the number of steps in which nothing is done before an episode begins, and by actions that stick."""
    adapter = atari(how, 2, "Pong")
    last = [played(adapter, 25, seed)[0][-1] for seed in (3, 14, 3)]
    assert not (last[0][0] == last[0][1]).all()
    assert not (last[0] == last[1]).all()
    np.testing.assert_array_equal(last[0], last[2])


def test_large_seeds_are_seeds(how):
    adapter = atari(how, 1)
    assert adapter.reset(2**31 - 1)["agent"].first.all()
    adapter.close()


def test_processes_play_too():
    adapter = atari(ASYNC, 2, limit=4)
    _, _, final, _, _ = played(adapter, 12)
    adapter.close()
    assert np.array(final).sum() == 4


@pytest.mark.parametrize("name", ["ALE/SpaceInvaders-v5", "space_invaders", "SpaceInvaders-v5"])
def test_a_game_is_found_by_what_people_call_it(name):
    adapter = AtariAdapter(config(name, 1, {}))
    assert adapter.roles["agent"].action_spec.branches == (6,)
    adapter.close()


@pytest.mark.parametrize(
    ("name", "env_args", "message"),
    [
        ("Pnog", {}, "no Gymnasium environment of the name 'Pnog'; near it"),
        ("Pong-v4", {}, "'Pong-v4' is none of the ids ALE/...-v5"),
        ("PongNoFrameskip-v4", {}, "'PongNoFrameskip-v4' is none of the ids"),
        ("CartPole", {}, "'CartPole' is none of the ids"),
        (lambda: None, {}, "env_type ATARI takes a name"),
        ("Pong", {"frameskip": 4}, "env_args.frameskip is none of what ATARI takes: frame_skip, full_action_space, "),
        ("Pong", {"grayscale_newaxis": True}, "env_args.grayscale_newaxis is none of"),
        ("Pong", {"noop_max": "many"}, "env_args.noop_max is 'many'; its default is 30"),
        ("Pong", {"noop_max": True}, "env_args.noop_max is True; its default is 30"),
        ("Pong", {"scale_obs": 1}, "env_args.scale_obs is 1; its default is False"),
        ("Pong", {"screen_size": [84]}, r"env_args.screen_size is \[84\]; its default is 84"),
        ("Pong", {"vectorization_mode": "threads"}, "'threads' is none of sync, async, vector_entry_point, envpool"),
        ("Pong", {"vector_kwargs": {"autoreset_mode": "SameStep"}}, "autoreset_mode is for sync and async"),
    ],
)
def test_what_cannot_be_is_told(name, env_args, message):
    with pytest.raises(UnsupportedEnvironment, match=message) as error:
        AtariAdapter(config(name, 1, env_args))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("env_args", [{"noop_max": 0}, {"terminal_on_life_loss": True}])
def test_what_envpool_does_not_have_is_refused(env_args):
    with pytest.raises(UnsupportedEnvironment, match="EnvPool has neither"):
        atari(ENVPOOL, **env_args)


def test_a_timeout_needs_processes():
    with pytest.raises(UnsupportedEnvironment, match="env_timeout is 3, but only processes"):
        AtariAdapter(config("Pong", 1, {}, timeout=3.0))


def test_arguments_that_ale_refuses_are_told_with_the_game():
    with pytest.raises(EnvironmentStartError, match="'ALE/Pong-v5' does not start: TypeError"):
        AtariAdapter(config("Pong", 1, {"vector_kwargs": {"num_threads": "two"}}))
