from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithm.replay import PriorityFunction
from algorithm.replay.prioritized import BRANCHING, SumTree
from tests.doubles import EncodedLanes
from tests.replay.samplers import PRIORITIZED, PRIORITY_FUNCTION, equal_errors, replay_of_valid_rows

SIZES = [1, 5, BRANCHING, BRANCHING + 1, 300, BRANCHING**2, BRANCHING**2 + 1, 5000]
UNBOUNDED = PriorityFunction(max_error_weight=0.9, td_error_min=1e-6, td_error_max=1e6)


def assert_sums(tree: SumTree) -> None:
    """Check that every node is the exact sum of its children, and that entries after the leaves are 0."""
    for below, above in zip(tree.levels, tree.levels[1:], strict=False):
        sums = np.zeros(above.size)
        sums[: len(below)] = below.sum(1)
        np.testing.assert_array_equal(above.reshape(-1), sums)
    assert not tree.levels[0].reshape(-1)[tree.size :].any()


@pytest.mark.parametrize("size", SIZES)
def test_random_operations_equal_brute_force(size):
    rng, tree, leaves = np.random.default_rng(0), SumTree(size), np.zeros(size)
    for _ in range(200):
        leaf = rng.integers(size, size=64)
        value = rng.choice([0, 1e-9, 0.3, 1, 1e6], size=64) * rng.random(64)
        tree.set(leaf, value)
        for each, its in zip(leaf, value, strict=True):
            leaves[each] = its
        np.testing.assert_array_equal(tree.leaves, leaves)
        sampled = rng.integers(size, size=8)
        np.testing.assert_allclose(
            tree.sum_before(sampled), [leaves[:each].sum() for each in sampled], rtol=1e-12, atol=1e-12
        )
        assert tree.total == pytest.approx(leaves.sum(), rel=1e-12)
    assert_sums(tree)


def test_filling_and_setting_are_bit_equal():
    rng, tree, filled = np.random.default_rng(2), SumTree(777), SumTree(777)
    for _ in range(50):
        tree.set(rng.integers(777, size=30), rng.random(30))
    filled.fill(tree.leaves)
    for one, other in zip(tree.levels, filled.levels, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("before", "after"), [(1, 3), (5, BRANCHING), (BRANCHING, BRANCHING + 1), (300, 5000)])
def test_appended_leaves_equal_initial_leaves(before, after):
    rng, tree, large = np.random.default_rng(3), SumTree(before), SumTree(after)
    for grown in (False, True):
        if grown:
            tree.grow(after)
        for _ in range(20):
            leaf, value = rng.integers(after if grown else before, size=30), rng.random(30)
            tree.set(leaf, value)
            large.set(leaf, value)
        assert tree.size == (after if grown else before)
    for one, other in zip(tree.levels, large.levels, strict=True):
        np.testing.assert_array_equal(one, other)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=60).filter(any))
def test_masses_find_the_leaf_that_contains_them(numbers):
    tree = SumTree(len(numbers))
    tree.set(np.arange(len(numbers)), np.array(numbers, float))
    masses = np.arange(0, sum(numbers), 0.25)  # exact, borders included
    found, rest = tree.find(masses)
    borders = np.cumsum(numbers)
    np.testing.assert_array_equal(found, borders.searchsorted(masses, side="right"))
    np.testing.assert_array_equal(rest, masses - borders[found] + np.array(numbers)[found])


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(SIZES), st.floats(0, 1))
def test_a_leaf_of_zero_is_never_found(seed, size, share):
    rng, tree = np.random.default_rng(seed), SumTree(size)
    leaf = rng.choice(size, size=1 + int(share * (size - 1)), replace=False)
    tree.set(leaf, 10 ** rng.uniform(-12, 12, size=len(leaf)))
    beyond = np.array([0, tree.total, np.nextafter(tree.total, 0), 2 * tree.total])
    found, rest = tree.find(np.append(beyond, tree.total * rng.random(60)))
    assert (tree.leaves[found] > 0).all()
    assert ((0 <= rest) & (rest < tree.leaves[found] * (1 + 1e-9) + tree.total * 1e-12)).all()


def four(beta: float = 0.4, increment: float = 0.0, priority_function: PriorityFunction = UNBOUNDED):
    """Return a replay with four valid sequences of one row (lane 0, rows 0, 1, 2, 3)."""
    settings = {"priority_function": priority_function, "beta": beta, "beta_increment_per_sampling": increment}
    return replay_of_valid_rows(partial(PRIORITIZED, **settings), 12, 4)


def probabilities(replay) -> np.ndarray:
    return replay.sampler.tree.leaves / replay.sampler.tree.total


def test_the_example_of_four_sequences():
    replay = four()
    replay.prioritize(np.arange(4), equal_errors(0.01, 1, 0.25, 0.5))
    np.testing.assert_allclose(probabilities(replay)[:4], (0.029236, 0.463365, 0.201691, 0.305707), atol=1e-6)
    expected = np.array((1, 0.331131, 0.461843, 0.391063))
    for _ in range(20):
        batch = replay.sample(400)
        assert batch.index.min() == 0  # so large a batch contains the largest weight
        np.testing.assert_allclose(batch.weight, expected[batch.index], atol=1e-6)
        assert batch.weight.dtype == np.float32


def test_sequences_are_drawn_in_proportion_to_their_priority():
    replay = four()
    replay.prioritize(np.arange(4), equal_errors(0.01, 1, 0.25, 0.5))
    counts = sum(np.bincount(replay.sample(100).index, minlength=4) for _ in range(1000))
    p = probabilities(replay)[:4]
    # Stratified draws have a smaller variance than independent draws.
    assert (abs(counts - 1e5 * p) < 3 * np.sqrt(1e5 * p * (1 - p))).all()


def test_one_sequence_is_drawn_from_each_part_of_the_sum():
    replay = four()
    replay.prioritize(np.arange(4), equal_errors(1, 1, 1, 1))
    for _ in range(20):
        assert sorted(replay.sample(4).index) == [0, 1, 2, 3]


def test_the_priority_of_a_sequence():
    largest, mean = np.float32([[0.5], [0.8 / 3]])
    assert PRIORITY_FUNCTION(np.array([largest, mean])) == pytest.approx(0.476667, abs=1e-6)
    assert PRIORITY_FUNCTION(np.array([[0.001, 1e9], [0.001, 1e9]])).tolist() == [0.01, 100]


def test_a_new_sequence_has_the_largest_priority_so_far():
    replay = four()
    assert set(replay.sampler.tree.leaves[:4]) == {1.0}
    replay.prioritize(np.arange(4), equal_errors(0.5, 7, 0.5, 0.5))
    replay.prioritize(np.arange(4), equal_errors(0.5, 0.5, 0.5, 0.5))
    rollout = EncodedLanes(1, 4).rollout(0)
    rollout.continues_previous[:] = True
    rollout.first[:] = False
    replay.add(rollout)
    np.testing.assert_allclose(replay.sampler.tree.leaves[4:8], 7**0.6)
    narrow = four(priority_function=PriorityFunction(0.9, 0.001, 0.25))
    np.testing.assert_allclose(narrow.sampler.tree.leaves[:4], 0.25**0.6)


def test_beta_rises_with_every_batch_to_one():
    replay = four(beta=0.5, increment=0.2)
    replay.prioritize(np.arange(4), equal_errors(1, 4, 4, 4))
    least = [replay.sample(400).weight.min() for _ in range(5)]
    np.testing.assert_allclose(least, [4 ** (-0.6 * beta) for beta in (0.5, 0.7, 0.9, 1, 1)], rtol=1e-6)
