from __future__ import annotations

from collections import Counter
from functools import partial

import numpy as np
import pytest

from algorithm.replay import PriorityFunction
from tests.doubles import EncodedLanes
from tests.replay.samplers import LAZY, equal_errors, replay_of, replay_of_valid_rows

UNBOUNDED = PriorityFunction(max_error_weight=1.0, td_error_min=1e-6, td_error_max=1e6)


def ten(uniform_fraction: float = 0.1):
    """Return a replay of one lane with ten valid sequences of one row."""
    return replay_of_valid_rows(partial(LAZY, priority_function=UNBOUNDED, uniform_fraction=uniform_fraction), 20, 10)


def probabilities(replay) -> np.ndarray:
    return replay.sampler.probability(np.zeros(10, np.int64), np.arange(10))


EXPECTED = np.array([11 / 7, 11 / 7, 1, 11 / 7, 11 / 7, 1.25, 3, 0.5, 1.5, 1.5])


def test_the_example_of_ten_sequences():
    replay = ten()
    replay.prioritize(np.array([2, 6, 7]), equal_errors(1, 3, 0.5))
    p = probabilities(replay)
    np.testing.assert_allclose(p, 0.01 + 0.9 * EXPECTED / EXPECTED.sum(), rtol=1e-12)
    assert p.sum() == pytest.approx(1, abs=1e-12)
    counts = np.zeros(10)
    for _ in range(1000):
        batch = replay.sample(100)
        np.testing.assert_allclose(batch.weight, 0.1 / p[batch.index], rtol=1e-6)
        counts += np.bincount(batch.index, minlength=10)
    assert (abs(counts - 1e5 * p) < 3 * np.sqrt(1e5 * p * (1 - p))).all()


def test_without_any_priority_sequences_are_drawn_uniformly():
    replay = ten()
    np.testing.assert_allclose(probabilities(replay), 0.1, rtol=1e-12)
    assert (replay.sample(64).weight == 1).all()
    assert sorted(ten(uniform_fraction=1.0).sample(10).index) == list(range(10))


def test_with_all_starts_assigned_it_is_proportional_prioritization():
    replay, priority = ten(), np.arange(1.0, 11)
    replay.prioritize(np.arange(10), equal_errors(*priority))
    np.testing.assert_allclose(probabilities(replay), 0.01 + 0.9 * priority / 55, rtol=1e-12)


def by_definition(sampler) -> list[np.ndarray]:
    """Return the probability of every drawable start of each lane, from the assigned priorities alone."""
    count = sampler.end - sampler.begin
    priorities = []
    for lane in range(len(count)):
        own = sampler.priority[
            sampler.sequences.find_slot(np.full(count[lane], lane), np.arange(sampler.begin[lane], sampler.end[lane]))
        ]
        assigned = np.flatnonzero(own)
        if not len(assigned):
            priorities.append(None)
            continue
        distance = abs(np.arange(count[lane])[:, None] - assigned)
        nearest = distance.argmin(1)  # the older one of two
        size = np.bincount(nearest, minlength=len(assigned))
        expected = np.zeros(count[lane])
        for t, cell in enumerate(nearest):
            around = slice(max(cell - 1, 0), cell + 2)
            mean = (size[around] * own[assigned[around]]).sum() / size[around].sum()
            expected[t] = own[t] or mean
        priorities.append(expected)
    covered = sum(len(each) for each in priorities if each is not None)
    total = sum(each.sum() for each in priorities if each is not None)
    uniform, share = 1 / count.sum(), sampler.uniform_fraction
    return [
        np.full(count[lane], uniform)
        if each is None
        else share * uniform + (1 - share) * each / total * covered / count.sum()
        for lane, each in enumerate(priorities)
    ]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("loss", [0.0, 0.3])
def test_random_operations_equal_brute_force(seed, loss):
    """About 20,000 operations per seed: starts are added, removed and prioritized."""
    sampler = partial(LAZY, priority_function=PriorityFunction(0.9, 0.01, 100), uniform_fraction=0.2)
    replay, lanes, rng = replay_of(sampler, capacity=600, lanes=3), EncodedLanes(3, 5), np.random.default_rng(seed)
    late = np.zeros(0, np.int64)
    for turn in range(400):
        chosen = rng.integers(3, size=3).tolist()
        replay.add(lanes.rollout(*chosen, lost=[lane for lane in set(chosen) if rng.random() < loss]))
        batch = replay.sample(int(rng.integers(1, 30)))
        if batch is not None and turn % 100 > 5:  # at times no priority is set for long
            index = rng.permutation(np.append(batch.index, late))
            replay.prioritize(index, partial(np.copy, 10 ** rng.uniform(-2, 2, size=(2, len(index)))))
            late = batch.index[:5]
        if turn % 10 == 0:
            expected = by_definition(replay.sampler)
            assert sum(each.sum() for each in expected) == pytest.approx(1, abs=1e-9)
            for lane, each in enumerate(expected):
                place = np.arange(replay.sampler.begin[lane], replay.sampler.end[lane])
                found = replay.sampler.probability(np.full(len(place), lane), place)
                np.testing.assert_allclose(found, each, rtol=1e-9)


def test_sequences_are_drawn_with_their_probability():
    sampler = partial(LAZY, priority_function=UNBOUNDED, uniform_fraction=0.2)
    replay, lanes = replay_of(sampler, capacity=300, lanes=3, length=1), EncodedLanes(3, 5)
    for _ in range(4):
        replay.add(lanes.rollout(0, 1, 2))
    for lane in (0, 2):  # no start of lane 1 is assigned
        for row, priority in ((3, 5.0), (4, 0.1), (11, 2.0)):
            replay.prioritize(replay.ring.make_index(np.array([lane]), np.array([row])), equal_errors(priority))
    p = {}
    for lane in range(3):
        place = np.arange(replay.sampler.begin[lane], replay.sampler.end[lane])
        lanes_of = np.full(len(place), lane)
        number = replay.sampler.number[replay.sampler.sequences.find_slot(lanes_of, place)]
        probability = replay.sampler.probability(lanes_of, place)
        p |= {int(replay.ring.make_index(lane, row)): each for row, each in zip(number, probability, strict=True)}
    counts = Counter(index for _ in range(1000) for index in replay.sample(100).index.tolist())
    for index, each in p.items():
        assert abs(counts[index] - 1e5 * each) < 3.5 * np.sqrt(1e5 * each), index
    assert set(counts) <= set(p)


def test_all_starts_of_a_lane_have_the_priority_of_its_only_assigned_start():
    """The priorities of lanes 0 and 1 are 7 and 1; lane 2 has no assigned start and is drawn uniformly."""
    replay = replay_of_valid_rows(partial(LAZY, priority_function=UNBOUNDED, uniform_fraction=0.25), 60, 10, lanes=3)
    replay.prioritize(replay.ring.make_index(np.array([0, 1]), np.array([3, 8])), equal_errors(7.0, 1.0))
    for lane, share in enumerate((7 / 80 * 20, 1 / 80 * 20, 1)):
        p = replay.sampler.probability(np.full(10, lane), np.arange(10))
        np.testing.assert_allclose(p, 0.25 / 30 + 0.75 * share / 30, rtol=1e-12)
