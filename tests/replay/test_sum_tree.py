from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithm.replay.sum_tree import BRANCHING, SumTree

SIZES = [1, 5, BRANCHING, BRANCHING + 1, 300, BRANCHING**2, BRANCHING**2 + 1, 5000]


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
    for _ in range(100_000 // 64 // len(SIZES) + 1):
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


def test_sums_are_exact_after_a_hundred_thousand_updates():
    rng, tree = np.random.default_rng(1), SumTree(1000)
    for _ in range(1000):
        tree.set(rng.integers(1000, size=100), 10 ** rng.uniform(-6, 6, size=100))
    assert_sums(tree)
    assert tree.total == pytest.approx(tree.leaves.sum(), rel=1e-14)


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
