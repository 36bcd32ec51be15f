"""Tests of the errand environment: its optimum, which needs both the picture and the vector."""

from copy import deepcopy
from itertools import product

import numpy as np
import pytest

from tests.envs.folders import load, play

errand = load("visual/errand")


def locate(picture):
    """Return the (row, column) of each colour relative to the centre; None if it is outside the picture."""
    places = []
    for colour in errand.COLOURS:
        rows, columns = np.nonzero((picture == np.array(colour, np.uint8)).all(-1))
        assert len(rows) in (0, errand.STRIDE**2)
        places.append(np.array([rows[0], columns[0]]) // errand.STRIDE - errand.AWAY if len(rows) else None)
    return places


def walk_to(select):
    """Return a policy that walks straight to the object with the index `select(obs)`."""

    def choose(obs):
        place = locate(obs["picture"])[select(obs)]
        return int(np.abs(errand.MOVES - place).sum(1).argmin())

    return choose


def test_the_optimum_equals_exhaustive_search():
    for seed in range(10):
        env = errand.make()
        env.reset(seed=seed)
        returns = []
        for moves in product(range(4), repeat=4):  # longer walks cost more
            copy, total = deepcopy(env), 0.0
            for move in moves:
                _, reward, over, _, _ = copy.step(move)
                total += reward
                if over:
                    break
            returns.append(total)
        assert max(returns) == pytest.approx(errand.mean_optimum())


def test_the_optimum_needs_both_the_picture_and_the_vector():
    env, seeds, rng = errand.make(), range(300), np.random.default_rng(0)
    both = [play(env, walk_to(lambda obs: int(obs["asked"].argmax())), seed).total for seed in seeds]
    picture = [play(env, walk_to(lambda obs: 0), seed).total for seed in seeds]
    at_random = [play(env, lambda obs: int(rng.integers(4)), seed).total for seed in seeds]
    np.testing.assert_allclose(both, errand.mean_optimum())
    assert np.mean(picture) < 0  # and the vector alone contains no direction
    assert set(np.round(picture, 2)) == {0.85, -1.15}
    assert np.mean(at_random) == pytest.approx(-0.5, abs=0.15)


def test_the_picture_moves_against_the_agent():
    env = errand.make()
    obs, _ = env.reset(seed=0)
    assert obs["picture"].shape == (14, 14, 3) and obs["picture"].dtype == np.uint8
    before = locate(obs["picture"])
    assert [np.abs(place).sum() for place in before] == [errand.AWAY] * errand.THINGS
    for action, move in enumerate(errand.MOVES):
        after = locate(deepcopy(env).step(action)[0]["picture"])
        for old, new in zip(before, after, strict=True):
            hidden = np.abs(old - move).max() > errand.AWAY
            assert new is None if hidden else (new == old - move).all()
