"""Tests of DeepSea and NoisyTv: optima, by dynamic programming, and how rarely random actions reach the reward."""

from itertools import product

import numpy as np
import pytest

from tests.envs.folders import load, play, take

deep_sea, noisy_tv = load("exploration/deep_sea"), load("exploration/noisy_tv")


def find_best_actions(env):
    """Return the best return and its actions by dynamic programming, with one step from every reachable cell."""
    last = env.size - 1
    values, best = np.zeros((env.size + 1, env.size)), np.zeros((env.size, env.size), int)
    for row in reversed(range(env.size)):
        for column in range(row + 1):
            returns = []
            for action in range(2):
                env.row, env.column = row, column
                _, reward, terminated, _, _ = env.step(action)
                assert terminated == (row == last)
                returns.append(reward + values[row + 1, env.column])
            values[row, column], best[row, column] = max(returns), np.argmax(returns)
    actions, column = [], 0
    for row in range(env.size):
        actions.append(best[row, column])
        moved_right = best[row, column] == env.right[row, column]
        column = min(column + 1, last) if moved_right else max(column - 1, 0)
    return values[0, 0], actions


@pytest.mark.parametrize("size", [1, 2, 5, 20, 50])
@pytest.mark.parametrize("mapping_seed", [0, 7])
def test_the_optimum_of_deep_sea_equals_dynamic_programming_for_every_size(size, mapping_seed):
    env = deep_sea.make(size=size, mapping_seed=mapping_seed)
    value, actions = find_best_actions(env)
    assert value == pytest.approx(deep_sea.mean_optimum()) == pytest.approx(0.99)
    episode = play(env, take(actions))
    assert episode.total == pytest.approx(value)
    np.testing.assert_allclose(episode.rewards, [-0.01 / size] * (size - 1) + [1 - 0.01 / size])
    np.testing.assert_array_equal(episode.observations[:-1], [np.diag(row) for row in np.eye(size)])
    assert not episode.observations[-1].any()


def test_one_sequence_of_actions_has_the_reward_and_all_others_cost_their_steps_to_the_right():
    env, size = deep_sea.make(size=6), 6
    returns = []
    for actions in product(range(2), repeat=size):
        episode = play(env, take(actions))
        cells = [tuple(np.argwhere(obs)[0]) for obs in episode.observations[:-1]]
        n_right = sum(int(env.right[cell] == action) for cell, action in zip(cells, actions, strict=True))
        assert episode.total == pytest.approx(float(n_right == size) - 0.01 * n_right / size)
        returns.append(episode.total)
    assert sum(value > 0 for value in returns) == 1
    assert max(value for value in returns if value <= 0) == 0


def test_the_action_that_moves_right_depends_on_the_cell_and_the_seed_only():
    env, same, other = (deep_sea.make(mapping_seed=seed) for seed in (0, 0, 1))
    env.reset(seed=5)
    np.testing.assert_array_equal(env.right, same.right)
    assert (env.right != other.right).any()
    assert 0.4 < env.right.mean() < 0.6


def find_best_returns(env):
    """Return the best return from every cell after every number of steps [steps + 1, cells], by dynamic programming."""
    env.reset(seed=0)
    values = np.zeros((env.steps + 1, env.length))
    for taken in reversed(range(env.steps)):
        for cell in range(env.length - 1):
            returns = []
            for action in range(3):
                env.taken, env.cell = taken, cell
                _, reward, terminated, _, _ = env.step(action)
                returns.append(reward + (0 if terminated else values[taken + 1, env.cell]))
            values[taken, cell] = max(returns)
    return values


@pytest.mark.parametrize("env_args", [{}, {"length": 5, "steps": 4}, {"length": 2, "steps": 9, "pictures": 2}])
def test_the_optimum_of_noisy_tv_equals_dynamic_programming(env_args):
    env = noisy_tv.make(**env_args)
    values = find_best_returns(env)
    assert values[0, 0] == noisy_tv.mean_optimum()
    # The last cell is reached if and only if enough steps are left.
    left, distance = env.steps - np.arange(env.steps)[:, None], env.length - 1 - np.arange(env.length - 1)
    np.testing.assert_array_equal(values[:-1, :-1], left >= distance)


def test_the_shortest_walk_has_the_reward_and_does_not_watch():
    env = noisy_tv.make()
    episode = play(env, take([noisy_tv.RIGHT] * env.steps))
    observations = episode.observations
    assert episode.rewards == [0.0] * (env.length - 2) + [1.0]
    assert episode.info == {"watched": 0}
    np.testing.assert_array_equal([obs[: env.length] for obs in observations], np.eye(env.length))
    assert observations[0][env.length :].any()
    assert not any(obs[env.length :].any() for obs in observations[1:])


def test_random_actions_do_not_reach_the_reward():
    """The probabilities of every cell, step by step, give those stated in config.yaml."""
    env = noisy_tv.make()
    cells, steps, watched = np.eye(env.length)[0], 0.0, 0.0
    for _ in range(env.steps):
        steps, watched = steps + cells[:-1].sum(), watched + cells[0] / 3
        after = np.zeros(env.length)
        after[-1] = cells[-1]
        for cell in range(env.length - 1):
            for place in (max(cell - 1, 0), cell, cell + 1):
                after[place] += cells[cell] / 3
        cells = after
    assert 1 / cells[-1] == pytest.approx(5.7e9, rel=0.01)
    assert watched / steps == pytest.approx(0.076, abs=0.001)


def test_watching_shows_every_other_picture_with_the_same_probability():
    env = noisy_tv.make(steps=6000, pictures=4)
    episode = play(env, lambda obs: noisy_tv.WATCH)
    assert episode.info == {"watched": env.steps} and not any(episode.rewards)
    numbers = [int((env.pictures == obs[env.length :]).all(1).argmax()) for obs in episode.observations]
    counts = np.zeros((4, 4))
    np.add.at(counts, (numbers[:-1], numbers[1:]), 1)
    assert not counts.diagonal().any()
    np.testing.assert_allclose(counts / counts.sum(1, keepdims=True), (1 - np.eye(4)) / 3, atol=0.05)


def test_all_other_steps_are_predictable_and_keep_the_picture():
    env = noisy_tv.make(length=3, steps=100)
    episode = play(env, take([noisy_tv.LEFT, noisy_tv.RIGHT, noisy_tv.WATCH, noisy_tv.LEFT] * 25))
    assert episode.info == {"watched": 0}
    first, moved = episode.observations[0], np.eye(3)[1].tolist() + [0] * noisy_tv.PIXELS
    for step, obs in enumerate(episode.observations[1:]):
        assert obs.tolist() == (first.tolist() if step % 4 in (0, 3) else moved)


def test_the_observations_are_a_small_set_that_is_the_same_in_every_environment():
    found = []
    for seed in range(2):
        env, seen = noisy_tv.make(), set()
        for episode in range(40):
            actions = take([noisy_tv.WATCH] * 20 + [noisy_tv.RIGHT] * 40)
            seen |= {tuple(obs) for obs in play(env, actions, seed=100 * seed + episode).observations}
        found.append(seen)
    assert found[0] == found[1]
    assert len(found[0]) == noisy_tv.LENGTH - 1 + noisy_tv.PICTURES
    assert all(any(obs[noisy_tv.LENGTH :]) == (obs[0] == 1) for obs in found[0])
