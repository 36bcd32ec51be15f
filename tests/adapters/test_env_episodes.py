"""Episodes of Gymnasium's environments become demonstrations, from Minari and from play with the keyboard."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import algorithm
from algorithm.adapters.adapter import EnvConfig, UnsupportedEnvironment
from algorithm.adapters.env_episodes import play_by_hand
from algorithm.adapters.spaces import make_action_spec
from algorithm.errors import UserError

CARTPOLE = EnvConfig(name="CartPole-v1", max_episode_steps=30)
ACTIONS = {
    "Box": spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 5.0], np.float32)),
    "Discrete": spaces.Discrete(4, start=2),
    "MultiDiscrete": spaces.MultiDiscrete([3, 2], start=[1, 0]),
    "MultiBinary": spaces.MultiBinary(3),
    "Dict": spaces.Dict({"door": spaces.Discrete(2), "speed": spaces.Box(-1, 3, (2,)), "place": spaces.Discrete(3)}),
    "Tuple": spaces.Tuple([spaces.Box(0, 1, (1,)), spaces.Discrete(3)]),
}


@pytest.mark.parametrize("space", ACTIONS.values(), ids=ACTIONS)
def test_actions_in_the_units_of_the_environment_are_converted_back(space):
    spec, rng = make_action_spec(space, None), np.random.default_rng(0)
    columns = [rng.uniform(-1, 1, (20, spec.continuous))]
    columns += [rng.integers(branch, size=(20, 1)) for branch in spec.branches]
    action = np.concatenate(columns, -1).astype(np.float32)
    np.testing.assert_allclose(spec.from_env_units(spec.to_env_units(action)), action, atol=1e-6)


def steps_of(env, actions, callback) -> None:
    """Play as gymnasium.utils.play does: a reset returns an observation with its info."""
    done, before = True, None
    for action in actions:
        if done:
            before = env.reset(seed=0)
        after, reward, terminated, truncated, info = env.step(action)
        callback(before, after, action, reward, terminated, truncated, info)
        before, done = after, terminated or truncated


def test_what_a_person_plays_is_recorded_episode_by_episode():
    def play(env, callback, **keys):
        assert keys == {"keys_to_action": {"a": 1}, "noop": 0}
        steps_of(env, [1] * 40, callback)

    (recorded,) = play_by_hand(CARTPOLE, {"a": 1}, play).values()
    lengths = [len(each.actions) for each in recorded.episodes]
    assert len(set(lengths)) == 1 and 40 - lengths[0] < sum(lengths) <= 40  # the last one did not end
    assert all(each.terminated and (each.actions == 1).all() for each in recorded.episodes)
    env = gymnasium.make("CartPole-v1")
    first, _ = env.reset(seed=0)
    np.testing.assert_array_equal(recorded.episodes[0].observations["obs"][0], first)


def test_a_truncated_episode_has_the_observation_after_its_last_step():
    (recorded,) = play_by_hand(
        EnvConfig(name="CartPole-v1", max_episode_steps=4),
        {"a": 1},
        lambda env, callback, **_: steps_of(env, [1, 0] * 4, callback),
    ).values()
    assert [each.terminated for each in recorded.episodes] == [False, False]
    assert [each.observations["obs"].shape[0] for each in recorded.episodes] == [5, 5]


def test_an_environment_without_keys_and_an_empty_recording_are_one_line():
    with pytest.raises(UnsupportedEnvironment, match="CartPole-v1 defines no keys: give them, as in --keys a=1"):
        play_by_hand(CARTPOLE, {})
    with pytest.raises(UserError, match="nothing was recorded: there is no episode"):
        play_by_hand(CARTPOLE, {"a": 1}, lambda env, callback, **_: steps_of(env, [1] * 3, callback))


def test_a_dataset_of_minari(tmp_path, monkeypatch):
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    env, buffers = gymnasium.make("Pendulum-v1", max_episode_steps=6), []
    actions = [np.array([0.5 * t - 1], np.float32) for t in range(6)]
    for seed in range(3):
        observations, rewards = [env.reset(seed=seed)[0]], []
        for action in actions:
            obs, reward, *_ = env.step(action)
            observations.append(obs)
            rewards.append(reward)
        ends = [False] * 5 + [True]
        buffers.append(
            minari.data_collector.EpisodeBuffer(
                observations=observations,
                actions=actions,
                rewards=rewards,
                terminations=[False] * 6,
                truncations=ends,
            )
        )
    minari.create_dataset_from_buffers("pendulum/test-v0", buffers, env)
    ((role, recorded),) = algorithm.read_demonstrations("minari:pendulum/test-v0").items()
    assert role == "agent" and len(recorded.episodes) == 3
    for each, buffer in zip(recorded.episodes, buffers, strict=True):
        np.testing.assert_allclose(each.observations["obs"], buffer.observations)
        np.testing.assert_allclose(each.actions[:, 0], (0.5 * np.arange(6) - 1) / 2)  # torques up to 2
        np.testing.assert_allclose(each.rewards, buffer.rewards, rtol=1e-6)
        assert not each.terminated


def test_a_dataset_that_is_not_on_this_machine_is_one_line(tmp_path, monkeypatch):
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    with pytest.raises(UserError, match="minari:none/there-v0 cannot be read: ") as error:
        algorithm.read_demonstrations("minari:none/there-v0")
    assert len(str(error.value).splitlines()) == 1
