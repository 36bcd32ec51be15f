"""Tests of the parking environment: its optimum, by dynamic programming and by driving."""

from functools import cache

import numpy as np
import pytest

from tests.envs.folders import load, play

parking = load("hybrid/parking")
GRID = 0.0125  # positions and moves are multiples of this
PLACES = np.arange(-120, 121) * GRID


@cache
def best_returns(throttles):
    """Return the best return from every position by target, with throttles in fortieths of full throttle.

    Throttles whose moves are not multiples of the grid are left out.
    """
    moves = [reach * k / 40 / GRID for reach in parking.REACH.values() for k in throttles]
    moves = [round(move) for move in moves if np.isclose(move, round(move))]
    after = np.clip(np.arange(241)[:, None] + np.array(moves), 0, 240)
    returns = {}
    for target in (-1.0, -0.55, 0.0, 0.35, 1.0):
        parked = 1 - parking.MISS * np.abs(PLACES - target)
        value = parked  # with no step left
        for _ in range(parking.STEPS):
            value = np.maximum(parked, (value[after] - parking.FUEL).max(1))
        returns[target] = value
    return returns


def test_the_optimum_equals_dynamic_programming():
    inside = np.abs(PLACES) <= 1
    for target, value in best_returns(range(41)).items():
        expected = [parking.optimum(target - place) for place in PLACES[inside]]
        np.testing.assert_allclose(value[inside], expected, atol=1e-9)


def drive(obs):
    """Drive straight to the target and park."""
    gap = float(obs[1] - obs[0])
    near = abs(gap) <= parking.FUEL / parking.MISS + 1e-9
    gear = parking.FORWARD if gap > 0 else parking.REVERSE
    throttle = np.array([min(1.0, gap / parking.REACH[gear])], np.float32)
    return {"gear": parking.PARK if near else gear, "throttle": throttle}


def test_driving_straight_reaches_the_optimum():
    env = parking.make()
    gears = set()
    for seed in range(300):
        episode = play(env, drive, seed)
        place, target, left = episode.observations[0]
        assert left == 1 and -1 <= place <= 1 and -1 <= target <= 1
        gears.add(target > place)
        assert episode.total == pytest.approx(parking.mean_optimum(), abs=1e-5)
        assert parking.optimum(float(target - place)) == pytest.approx(parking.mean_optimum(), abs=1e-5)
        assert len(episode.rewards) == 3
    assert gears == {True, False}


@pytest.mark.parametrize("throttle", [4, 8, 16, 24, 32, 40])
def test_no_throttle_fits_all_distances(throttle):
    lost = []
    for target, value in best_returns((throttle,)).items():
        for gear in (parking.REVERSE, parking.FORWARD):
            share = (target - PLACES) / parking.REACH[gear]
            starts = (np.abs(PLACES) <= 1) & (parking.GAP[0] <= share) & (share <= parking.GAP[1])
            lost += (parking.mean_optimum() - value[starts]).tolist()
    assert np.mean(lost) > 0.1  # the goal is 0.03 below the optimum


def test_after_the_last_step_the_car_is_parked_at_its_position():
    episode = play(parking.make(), lambda obs: {"gear": np.int64(2), "throttle": np.zeros(1, np.float32)}, seed=0)
    assert len(episode.rewards) == parking.STEPS
    obs = episode.observations[-1]
    miss = abs(float(obs[1] - obs[0]))
    assert episode.total == pytest.approx(1 - parking.MISS * miss - parking.STEPS * parking.FUEL, abs=1e-6)


def test_positions_are_limited():
    env = parking.make()
    env.reset(seed=0)
    for _ in range(parking.STEPS - 1):
        obs = env.step({"gear": 2, "throttle": np.ones(1, np.float32)})[0]
    assert obs[0] == parking.EDGE
