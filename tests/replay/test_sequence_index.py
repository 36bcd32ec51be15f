"""Whole windows that are counted, against those that are listed one by one."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithm.replay import Replay, UniformSampler
from algorithm.replay.sequence_index import SequenceIndex
from algorithm.replay.sequences import list_numbers
from tests.doubles import EncodedLanes, assert_intact, starts_of
from tests.replay.test_replay import SHAPES


def whole_windows(replay: Replay) -> list[tuple[int, int]]:
    """Return (lane, number) of every start whose window is whole, in order."""
    span = replay.sequences.compute_start_range()
    lane, number = list_numbers(span.oldest, span.newest)
    whole = replay.sequences.is_unbroken(lane, number)
    return list(zip(lane[whole].tolist(), number[whole].tolist(), strict=True))


def found_windows(replay: Replay, stretches: SequenceIndex) -> list[tuple[int, int]]:
    """Return the same by counting and finding them."""
    span = replay.sequences.compute_start_range()
    count = stretches.count(span)
    lane, which = list_numbers(np.zeros_like(count), count - 1)
    return list(zip(lane.tolist(), stretches.find(span, lane, which).tolist(), strict=True))


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: " ".join(f"{k}={v}" for k, v in shape.items()))
@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    loss=st.sampled_from([0.0, 0.2, 0.6, 0.9]),
    between=st.sampled_from([1, 3, 30]),
)
def test_every_whole_window_is_counted_and_found_and_no_other(shape, seed, loss, between):
    """However many columns are written before the next count: also more than the ring holds."""
    rng = np.random.default_rng(seed)
    replay, lanes = Replay(rng=rng, lanes=3, **shape), EncodedLanes(3, shape["chunk"])
    stretches = SequenceIndex(replay.sequences)
    for _ in range(12):
        for _ in range(int(rng.integers(1, between + 1))):
            chosen = rng.integers(3, size=3).tolist()
            replay.add(lanes.rollout(*chosen, lost=[lane for lane in set(chosen) if rng.random() < loss]))
        assert found_windows(replay, stretches) == whole_windows(replay)
        assert found_windows(replay, SequenceIndex(replay.sequences)) == whole_windows(replay)


def mostly_broken(rows: int, joined: int = 0) -> tuple[Replay, EncodedLanes]:
    """Return a full replay of two lanes with a break before each column but `joined` of every ten."""
    replay, lanes = Replay(rows, 2, 5, 8, np.random.default_rng(joined)), EncodedLanes(2, 5)
    for column in range(rows // 10 + 3):
        replay.add(lanes.rollout(0, 1, lost=[] if column % 10 == joined else [0, 1]))
    return replay, lanes


def test_what_is_drawn_is_what_a_list_of_all_whole_windows_gives():
    """Bit for bit, for the same generator."""
    replay, _ = mostly_broken(2000)
    whole = np.array(whole_windows(replay))
    rng, twin = np.random.default_rng(1), np.random.default_rng(1)
    sampler, span = UniformSampler(replay.sequences), replay.sequences.compute_start_range()
    for _ in range(20):
        drawn = sampler.sample(rng, 16)
        lane, number = sampler._draw_any(twin, span, 16)
        for _ in range(8):
            broken = np.flatnonzero(~replay.sequences.is_unbroken(lane, number))
            lane[broken], number[broken] = sampler._draw_any(twin, span, len(broken))
        assert not replay.sequences.is_unbroken(lane, number).all()
        lane, number = whole[twin.integers(len(whole), size=16)].T
        np.testing.assert_array_equal(drawn.lane, lane)
        np.testing.assert_array_equal(drawn.number, number)


def test_a_restored_replay_finds_its_whole_windows_in_the_ring():
    replay, lanes = mostly_broken(2000)
    assert_intact(replay.sample(16))
    other, _ = mostly_broken(2000, joined=5)
    other.sample(16)
    for _ in range(40):
        replay.add(lanes.rollout(0, 0, lost=[0]))
    other.restore(replay.state())
    other.rng.bit_generator.state = replay.rng.bit_generator.state
    for _ in range(5):
        ours, theirs = replay.sample(32), other.sample(32)
        assert starts_of(ours) == starts_of(theirs)
        assert_intact(theirs)
        for each in (replay, other):
            each.add(EncodedLanes(2, 5).rollout(0, 1))


def test_a_draw_takes_no_memory_in_proportion_to_the_rows():
    """Listing 20,000 rows takes 160 kB for each of several arrays."""
    replay, lanes = mostly_broken(20_000)
    replay.sampler.sample(replay.rng, 16)
    replay.add(lanes.rollout(0, 1))
    tracemalloc.start()
    replay.sampler.sample(replay.rng, 16)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20_000
