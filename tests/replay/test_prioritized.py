from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from algorithm.replay import PrioritizedSampler, PriorityFunction
from tests.doubles import EncodedLanes
from tests.replay.samplers import PRIORITIZED, PRIORITY_FUNCTION, equal_errors, replay_of

UNBOUNDED = PriorityFunction(max_error_weight=0.9, td_error_min=1e-6, td_error_max=1e6)


def four(beta: float = 0.4, increment: float = 0.0, priority_function: PriorityFunction = UNBOUNDED):
    """Return a replay with four valid sequences of one row (lane 0, rows 0, 1, 2, 3)."""
    sampler = partial(
        PrioritizedSampler,
        priority_function=priority_function,
        alpha=0.6,
        beta=beta,
        beta_increment_per_sampling=increment,
    )
    replay = replay_of(sampler, capacity=12, lanes=1, chunk=4, length=1)
    rollout = EncodedLanes(1, 4).rollout(0)
    rollout.first[:] = False
    replay.add(rollout)
    return replay


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


def test_equal_priorities_have_weight_one():
    replay = replay_of(PRIORITIZED)
    replay.add(EncodedLanes(3, 5).rollout(0, 1, 2))
    assert (replay.sample(64).weight == 1).all()


def test_a_new_sequence_has_at_most_the_largest_priority_allowed():
    replay = four(priority_function=PriorityFunction(max_error_weight=0.9, td_error_min=0.01, td_error_max=0.5))
    replay.prioritize(np.arange(4), equal_errors(0.2, 0.2, 0.2, 0.2))
    replay.add(EncodedLanes(1, 4).rollout(0))
    assert replay.sampler.tree.leaves.max() == pytest.approx(0.5**0.6)
