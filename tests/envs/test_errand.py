"""The errand: its optimum, and that neither the picture nor the vector alone is enough."""

from copy import deepcopy
from itertools import product

import numpy as np
import pytest

from tests.envs.folders import load

errand = load("visual/errand")


def where(picture):
    """(row, column) of each colour, as seen from the middle; None for what is out of sight."""
    places = []
    for colour in errand.COLOURS:
        rows, columns = np.nonzero((picture == np.array(colour, np.uint8)).all(-1))
        assert len(rows) in (0, errand.STRIDE**2)
        places.append(np.array([rows[0], columns[0]]) // errand.STRIDE - errand.AWAY if len(rows) else None)
    return places


def walk(env, obs, wanted):
    """The return of going straight to the thing that `wanted` names when it is shown the observation."""
    total, over = 0.0, False
    while not over:
        place = where(obs["picture"])[wanted(obs)]
        steps = np.abs(errand.MOVES - place).sum(1)
        obs, reward, over, _, _ = env.step(int(steps.argmin()))
        total += reward
    return total


def test_the_optimum_is_what_trying_everything_finds():
    for seed in range(10):
        env = errand.make()
        env.reset(seed=seed)
        returns = []
        for moves in product(range(4), repeat=4):  # what takes longer costs more
            copy, total = deepcopy(env), 0.0
            for move in moves:
                _, reward, over, _, _ = copy.step(move)
                total += reward
                if over:
                    break
            returns.append(total)
        assert max(returns) == pytest.approx(errand.mean_optimum())


def test_who_sees_both_parts_reaches_the_optimum_and_who_sees_one_does_not():
    both, picture = [], []
    for seed in range(300):
        env = errand.make()
        obs, _ = env.reset(seed=seed)
        both.append(walk(deepcopy(env), obs, lambda obs: int(obs["asked"].argmax())))
        picture.append(walk(env, obs, lambda obs: 0))
    np.testing.assert_allclose(both, errand.mean_optimum())
    assert np.mean(picture) < 0  # the vector alone tells no direction
    assert set(np.round(picture, 2)) == {0.85, -1.15}


def test_at_random_there_is_little_to_get():
    rng, returns = np.random.default_rng(0), []
    for seed in range(300):
        env = errand.make()
        env.reset(seed=seed)
        over, total = False, 0.0
        while not over:
            _, reward, over, _, _ = env.step(int(rng.integers(4)))
            total += reward
        returns.append(total)
    assert np.mean(returns) == pytest.approx(-0.5, abs=0.15)


def test_the_picture_moves_the_other_way():
    env = errand.make()
    obs, _ = env.reset(seed=0)
    assert obs["picture"].shape == (14, 14, 3) and obs["picture"].dtype == np.uint8
    before = where(obs["picture"])
    assert [np.abs(place).sum() for place in before] == [errand.AWAY] * errand.THINGS
    for action, move in enumerate(errand.MOVES):
        after = where(deepcopy(env).step(action)[0]["picture"])
        for old, new in zip(before, after, strict=True):
            hidden = np.abs(old - move).max() > errand.AWAY
            assert new is None if hidden else (new == old - move).all()


@pytest.mark.parametrize("action", [4, -1, 0.5])
def test_what_is_no_move_raises(action):
    env = errand.make()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="an action is a move"):
        env.step(action)
