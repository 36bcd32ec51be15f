"""The play: random actions, rewards, ends of episodes, limits and failures."""

from __future__ import annotations

import numpy as np
import pytest

from algorithm.adapters.adapter import EnvConfig
from algorithm.adapters.gym import GymAdapter
from algorithm.parts import random_play
from algorithm.parts.random_play import RandomPlay, draw_actions, play_randomly
from algorithm.rollout import Step
from algorithm.specs import ACTION_MASK, ActionSpec


def play(name, seed=0, **args):
    return play_randomly(GymAdapter, EnvConfig(name=name, args=args), seed)


def test_rewards_and_ends_of_episodes_are_counted():
    cartpole = play("CartPole-v1")
    assert cartpole.failure is None
    assert cartpole.terminations == len(cartpole.episode_lengths) > 20
    assert sum(cartpole.episode_lengths) <= len(cartpole.rewards) <= random_play.MAX_STEPS
    assert (cartpole.reward_size, cartpole.reward_frequency, cartpole.has_equal_rewards) == (1, 1, False)
    car = play("MountainCar-v0")
    assert set(car.episode_lengths) == {200} and not car.terminations and car.has_equal_rewards
    lake = play("FrozenLake-v1")
    assert lake.reward_frequency < 0.1 and not lake.has_equal_rewards


def test_the_same_seed_repeats_the_probe():
    one, other, different = (play("Pendulum-v1", seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.rewards, other.rewards)
    assert one.episode_lengths == other.episode_lengths
    assert not np.array_equal(one.rewards, different.rewards)


def test_a_slow_environment_is_probed_for_a_limited_time(monkeypatch):
    monkeypatch.setattr(random_play, "MAX_SECONDS", 0.0)
    short = play("CartPole-v1")
    assert (len(short.rewards), short.steps, short.is_complete) == (1, 1, False)
    assert short.failure == "the environment executed only 1 actions in 0 s"
    monkeypatch.setattr(random_play, "MIN_STEPS", 1)
    assert play("CartPole-v1").failure is None


def test_equal_rewards_count_after_an_episode_or_all_actions():
    rewards = np.zeros(200)
    assert not RandomPlay(rewards=rewards, steps=200).has_equal_rewards
    assert RandomPlay(rewards=rewards, steps=200, episode_lengths=(90,)).has_equal_rewards
    assert RandomPlay(rewards=rewards).has_equal_rewards


@pytest.mark.parametrize("reward", [np.nan, -np.inf])
def test_a_reward_that_is_not_finite_ends_the_probe(reward):
    failed = play("tests.adapters.fragile:Invalid-v0", reward=reward)
    assert failed.failure == "a reward of role 'agent' is NaN or infinite after 1 actions"


def test_a_failure_ends_the_probe_and_is_recorded_in_one_line():
    failed = play("tests.adapters.fragile:Fragile-v0", vectorization_mode="vector_entry_point")
    assert "a motor" in failed.failure and "\n" not in failed.failure
    assert len(failed.rewards) == 2


@pytest.mark.parametrize("mask", [[1, 0, 1, 0, 1], [0, 0, 0, 1, 1]])
def test_random_actions_are_allowed_and_all_of_them_occur(mask):
    n, none = 500, np.zeros(500, bool)
    step = Step(
        lane=np.arange(n),
        obs={ACTION_MASK: np.tile(np.array(mask, np.uint8), (n, 1))},
        first=none,
        is_bootstrap_row=none,
        reward=np.zeros(n),
        alive=~none,
    )
    spec = ActionSpec(2, (3, 2))
    actions = draw_actions(spec, step, np.random.default_rng(0))
    assert actions.dtype == np.float32 and actions.shape == (n, 4)
    assert np.abs(actions[:, :2]).max() <= 1 and actions[:, :2].std() == pytest.approx(3**-0.5, rel=0.1)
    allowed = [index for index in range(3) if mask[index]] or [0, 1, 2]
    assert set(actions[:, 2].astype(int)) == set(allowed)
    assert set(actions[:, 3].astype(int)) == {index for index in range(2) if mask[3 + index]}
