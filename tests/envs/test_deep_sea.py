"""Tests of DeepSea: its optimum, by dynamic programming, and how rarely random actions reach it."""

from itertools import product

import numpy as np
import pytest

from tests.envs.folders import load, play, take

deep_sea = load("exploration/deep_sea")


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
def test_the_optimum_equals_dynamic_programming_for_every_size(size, mapping_seed):
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
