"""The runs of complete sequences, compared with a list of all of them; draws from them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithm.replay import Replay, UniformSampler
from algorithm.replay.sampler import list_numbers
from algorithm.replay.uniform import list_runs
from tests.doubles import EncodedLanes, assert_intact, find_starts
from tests.replay.samplers import each_shape, replay_of


def complete_sequences(replay: Replay) -> list[tuple[int, int]]:
    """Return (lane, number) of every start of a complete sequence, in order."""
    start_range = replay.sequences.compute_start_range()
    lane, number = list_numbers(start_range.oldest, start_range.newest)
    is_complete = replay.sequences.is_unbroken(lane, number)
    return list(zip(lane[is_complete].tolist(), number[is_complete].tolist(), strict=True))


def listed_sequences(replay: Replay) -> list[tuple[int, int]]:
    """Return the same from the runs."""
    runs = list_runs(replay.sequences, replay.sequences.compute_start_range())
    run, number = list_numbers(runs.first, runs.first + runs.count - 1)
    return list(zip(runs.lane[run].tolist(), number.tolist(), strict=True))


@each_shape
@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    loss=st.sampled_from([0.0, 0.2, 0.6, 0.9]),
    between=st.sampled_from([1, 3]),
)
def test_every_complete_sequence_is_listed_and_no_other(shape, seed, loss, between):
    rng = np.random.default_rng(seed)
    replay, lanes = Replay(rng=rng, lanes=3, **shape), EncodedLanes(3, shape["chunk"])
    for _ in range(12):
        for _ in range(int(rng.integers(1, between + 1))):
            chosen = rng.integers(3, size=3).tolist()
            replay.add(lanes.rollout(*chosen, lost=[lane for lane in set(chosen) if rng.random() < loss]))
        assert listed_sequences(replay) == complete_sequences(replay)


def mostly_broken(rows: int, unbroken: int = 0) -> tuple[Replay, EncodedLanes]:
    """Return a full replay of two lanes with a break before each column except column `unbroken` of every ten."""
    replay, lanes = replay_of(capacity=rows, lanes=2, length=8, seed=unbroken), EncodedLanes(2, 5)
    for column in range(rows // 10 + 3):
        replay.add(lanes.rollout(0, 1, lost=[] if column % 10 == unbroken else [0, 1]))
    return replay, lanes


def test_draws_equal_those_from_a_list_of_all_complete_sequences():
    replay, _ = mostly_broken(2000)
    is_complete = np.array(complete_sequences(replay))
    rng, twin = np.random.default_rng(1), np.random.default_rng(1)
    sampler = UniformSampler(replay.sequences)
    for _ in range(20):
        drawn = sampler.sample(rng, 16)
        lane, number = sampler._draw_any(twin, 16)
        for _ in range(8):
            broken = np.flatnonzero(~replay.sequences.is_unbroken(lane, number))
            lane[broken], number[broken] = sampler._draw_any(twin, len(broken))
        assert not replay.sequences.is_unbroken(lane, number).all()
        lane, number = is_complete[twin.integers(len(is_complete), size=16)].T
        np.testing.assert_array_equal(drawn.lane, lane)
        np.testing.assert_array_equal(drawn.number, number)


def test_a_restored_replay_finds_its_complete_sequences_in_the_ring():
    replay, lanes = mostly_broken(2000)
    assert_intact(replay.sample(16))
    other, _ = mostly_broken(2000, unbroken=5)
    other.sample(16)
    for _ in range(40):
        replay.add(lanes.rollout(0, 0, lost=[0]))
    other.restore(replay.state())
    other.rng.bit_generator.state = replay.rng.bit_generator.state
    for _ in range(5):
        ours, theirs = replay.sample(32), other.sample(32)
        assert find_starts(ours) == find_starts(theirs)
        assert_intact(theirs)
        for each in (replay, other):
            each.add(EncodedLanes(2, 5).rollout(0, 1))


@pytest.mark.parametrize("broken", [False, True])
def test_weights_of_uniform_draws_are_one(broken):
    """With a break before nearly every column, draws are from the runs of complete sequences."""
    replay = mostly_broken(2000)[0] if broken else replay_of(capacity=2000, lanes=2, length=8)
    replay.add(EncodedLanes(2, 5).rollout(0, 1, 0, 1, 0, 1))
    for _ in range(20):
        weight = replay.sample(16).weight
        assert weight.dtype == np.float32 and (weight == 1).all()
