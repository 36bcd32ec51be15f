"""Tests of the simulators in envs/: Gymnasium's interface, action masks, optimal returns, and invalid arguments."""

from copy import deepcopy

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from tests.envs.folders import FOLDERS_WITH_CODE, find_simulators, load, play

MASKED = [name for name in FOLDERS_WITH_CODE if name.startswith("masked/")]
EPISODES = 30
LONGEST = {
    "exploration/noisy_tv": 60,
    "goals/point_maze": 60,
    "entities/collect": 40,
}  # steps of an episode at most; 24 in all others
TRUNCATED = {"goals/point_maze", "entities/collect"}  # after the longest episode; all others terminate


def mask_of(env, obs, info):
    """Return the action mask of each branch; None if the simulator has no masks."""
    mask = info.get("action_mask")
    if mask is None and isinstance(obs, dict):
        mask = obs.get("action_mask")
    if mask is None:
        return None
    space = env.action_space
    branches = [space.n] if isinstance(space, gymnasium.spaces.Discrete) else space.nvec
    return np.split(mask, np.cumsum(branches)[:-1])


class ReplaceForbiddenActions(gymnasium.Wrapper):
    """A wrapper that replaces forbidden actions, since Gymnasium's checker does not support masks."""

    def reset(self, **kwargs):
        obs, info = self.env.reset(**kwargs)
        self.mask = mask_of(self.env, obs, info)
        return obs, info

    def step(self, action):
        if self.mask is not None:
            chosen = [a if mask[a] else mask.argmax() for a, mask in zip(np.atleast_1d(action), self.mask, strict=True)]
            action = chosen[0] if np.ndim(action) == 0 else np.array(chosen)
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.mask = mask_of(self.env, obs, info)
        return obs, reward, terminated, truncated, info


@pytest.mark.filterwarnings("ignore:.*different from the unwrapped.*", "ignore:.*not having a spec.*")
@pytest.mark.parametrize("name", find_simulators())
def test_simulators_pass_gymnasiums_checker(name):
    check_env(ReplaceForbiddenActions(load(name).make()))


@pytest.mark.parametrize("name", find_simulators())
def test_episodes_terminate_and_observations_are_in_the_space(name):
    env = ReplaceForbiddenActions(load(name).make())
    env.action_space.seed(0)
    for seed in range(EPISODES):
        episode = play(env, lambda obs: env.action_space.sample(), seed, has_limit=name in TRUNCATED)
        assert all(env.observation_space.contains(obs) for obs in episode.observations)
        assert len(episode.rewards) <= LONGEST.get(name, 24)


@pytest.mark.parametrize("name", MASKED)
def test_exactly_the_masked_actions_raise(name):
    env = ReplaceForbiddenActions(load(name).make())
    env.action_space.seed(0)
    forbidden = []

    def try_all(obs):
        assert all(mask.any() for mask in env.mask)
        for action in np.ndindex(*map(len, env.mask)):
            taken = np.array(action) if len(action) > 1 else action[0]
            if all(mask[a] for mask, a in zip(env.mask, action, strict=True)):
                deepcopy(env.unwrapped).step(taken)
            else:
                forbidden.append(taken)
                with pytest.raises(ValueError, match=r"more than|picked before"):
                    deepcopy(env.unwrapped).step(taken)
        return env.action_space.sample()

    for seed in range(EPISODES):
        play(env, try_all, seed)
        assert not any(mask.any() for mask in env.mask)
    assert len(forbidden) > EPISODES


def exhaustive(env, actions, allowed):
    """Return the best return from the current state of an environment, by exhaustive search."""
    best = -np.inf
    for action in actions:
        if allowed(env, action):
            after = deepcopy(env)
            _, reward, terminated, _, _ = after.step(action)
            best = max(best, reward + (0 if terminated else exhaustive(after, actions, allowed)))
    return best


def test_the_optimum_of_coins_equals_exhaustive_search():
    module = load("masked/coins")
    for amount in [1, 4, 6, 10, 14, *module.amounts()[::4]]:
        env = module.make()
        env.reset(seed=0)
        env.remaining = amount
        found = exhaustive(env, range(4), lambda env, action: env.coins[action] <= env.remaining)
        assert found == module.optimum(amount)
        assert (found == module.mean_optimum()) == (amount in module.amounts())


def test_the_largest_coin_is_not_optimal():
    module = load("masked/coins")

    def largest(amount):
        return 0 if not amount else largest(amount - max(coin for coin in module.COINS if coin <= amount)) - 1

    assert np.mean([largest(amount) for amount in module.amounts()]) < 1.2 * module.mean_optimum()


def test_the_optimum_of_lights_equals_exhaustive_search():
    module = load("masked/lights")
    for seed in range(20):
        env = module.make()
        board = env.reset(seed=seed)[0]["lit"]
        found = exhaustive(
            env,
            [np.array(pair) for pair in np.ndindex(3, 3)],
            lambda env, action: env.left[0, action[0]] and env.left[1, action[1]],
        )
        assert found == module.optimum(board) == module.mean_optimum()


def test_used_rows_and_columns_are_dark():
    env = load("masked/lights").make()
    env.reset(seed=0)
    env.lit[:] = 1
    obs = env.step(np.array([1, 2]))[0]
    np.testing.assert_array_equal(obs["lit"], [[1, 1, 0], [0, 0, 0], [1, 1, 0]])
    np.testing.assert_array_equal(obs["action_mask"], [1, 0, 1, 1, 1, 0])


def test_choosing_any_lit_light_is_not_optimal():
    module = load("masked/lights")
    env = module.make()

    def choose_lit(obs):
        allowed = np.outer(env.left[0], env.left[1])
        return np.array(np.unravel_index((allowed + obs["lit"] * allowed).argmax(), allowed.shape))

    assert np.mean([play(env, choose_lit, seed).total for seed in range(300)]) < 0.92 * module.mean_optimum()


def test_recall_shows_the_cue_once_and_rewards_the_answer_later():
    env = load("memory/recall").make(cues=3, shortest=2, longest=4)
    waits = set()
    for seed in range(40):
        obs, _ = env.reset(seed=seed)
        cue = int(obs.argmax())
        assert obs.tolist() == np.eye(4, dtype=int)[cue].tolist()
        waited, has_question = 0, False
        while not has_question:
            obs, reward, over, _, _ = env.step((cue + 1) % 3)  # before the question
            waited += 1
            has_question = bool(obs[3])
            assert (reward, over, obs[:3].any()) == (0, False, False)
        waits.add(waited)
        answer = (cue + seed % 2) % 3
        obs, reward, over, _, _ = env.step(answer)
        assert (reward, over, obs.any()) == (float(answer == cue), True, False)
    assert waits == {2, 3, 4}


def test_the_hidden_values_are_the_velocities():
    hidden, full = load("memory/cartpole_hidden_velocity").make(), gymnasium.make("CartPole-v1")
    obs, _ = hidden.reset(seed=3)
    np.testing.assert_array_equal(obs, full.reset(seed=3)[0][[0, 2]])
    for action in (1, 0, 0, 1, 1):
        np.testing.assert_array_equal(hidden.step(action)[0], full.step(action)[0][[0, 2]])


FULL = np.ones(1, np.float32)  # throttle


@pytest.mark.parametrize(
    ("name", "actions", "message"),
    [
        ("exploration/deep_sea", [2, -1, 0.5], "an action is 0 or 1"),
        ("exploration/noisy_tv", [3, -1, 0.5], "an action is 0"),
        ("visual/errand", [4, -1, 0.5], "an action is a move"),
        (
            "hybrid/parking",
            [{"gear": 3, "throttle": 0.5 * FULL}, {"gear": 2, "throttle": 1.1 * FULL}, {"gear": 2}],
            "an action is a gear",
        ),
    ],
)
def test_an_invalid_action_raises(name, actions, message):
    env = load(name).make()
    for action in actions:
        env.reset(seed=0)
        with pytest.raises(ValueError, match=message):
            env.step(action)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("exploration/deep_sea", {"size": 0}, "size 0 must be at least 1"),
        ("exploration/noisy_tv", {"length": 62}, "length 62 must be at least 2 and at most steps"),
        ("exploration/noisy_tv", {"pictures": 1}, "pictures 1 must be at least 2"),
        ("masked/coins", {"coins": (2, 3)}, "one of them must be 1"),
        ("masked/coins", {"most": 5, "fewest": 6}, "no amount up to 5 needs 6 of the coins"),
        ("memory/recall", {"shortest": 0}, "must be at least 1, and shortest not above longest"),
    ],
)
def test_an_invalid_argument_is_rejected(name, arguments, message):
    with pytest.raises(ValueError, match=message):
        load(name).make(**arguments)
