"""The grid with items among distractors: its observations and rewards, and a player that collects all items."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from tests.envs.folders import load, play

MODULE = load("entities/collect")


def find_move(env):
    """Return the first move of a shortest way to an item around the distractors, or through them if there is none."""
    items = {tuple(cell) for cell, kind in zip(env.things, env.kinds, strict=True) if kind > 0}
    others = {tuple(cell) for cell, kind in zip(env.things, env.kinds, strict=True) if kind < 0}
    for walls in (others, set()):
        waiting, seen = deque([(tuple(env.place), None)]), {tuple(env.place)}
        while waiting:
            cell, first = waiting.popleft()
            if cell in items:
                return first
            for move, step in enumerate(MODULE.MOVES):
                after = tuple(np.array(cell) + step)
                if after not in seen | walls and min(after) >= 0 and max(after) < MODULE.SIDE:
                    seen.add(after)
                    waiting.append((after, move if first is None else first))
    raise AssertionError("no item is left")


def test_a_player_that_walks_around_distractors_reaches_the_optimum():
    env = MODULE.make()
    totals = [play(env, lambda obs: find_move(env), seed).total for seed in range(60)]
    assert np.mean(totals) > 0.98 * MODULE.mean_optimum() and max(totals) == pytest.approx(MODULE.mean_optimum())


def test_rows_are_what_is_left_in_any_order():
    env = MODULE.make()
    obs, _ = env.reset(seed=1)
    assert len(obs) == len(env.things) == len(env.kinds)
    expected = sorted([*(thing - env.place) / 6, kind] for thing, kind in zip(env.things, env.kinds, strict=True))
    np.testing.assert_allclose(sorted(row.tolist() for row in obs), expected, rtol=1e-6)
    orders = {tuple(row[2] for row in env._observe()) for _ in range(20)}
    assert len(orders) > 1


def test_a_distractor_costs_a_quarter_and_the_last_item_ends_the_episode():
    env = MODULE.make()
    env.reset(seed=0)
    env.place, env.n_items = np.array([3, 3]), 2
    env.things, env.kinds = np.array([[3, 4], [3, 5], [4, 5]]), np.array([1.0, -1.0, 1.0])
    steps = [env.step(move)[1:4] for move in (0, 0, 2)]
    assert steps == [(0.5, False, False), (-0.25, False, False), (0.5, True, False)]
