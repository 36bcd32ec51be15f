"""The contract of samplers with priorities, for random writes."""

from __future__ import annotations

from collections import Counter
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithm.config.loader import resolve
from algorithm.replay import (
    LazyPrioritizedSampler,
    PrioritizedSampler,
    PriorityFunction,
    Replay,
    UniformSampler,
    make_sampler,
)
from algorithm.replay.ring import Ring
from algorithm.replay.sampler import Sequences, list_numbers, locate_nth
from tests.doubles import EncodedLanes, assert_intact, find_starts
from tests.replay.samplers import (
    LAZY,
    PRIORITIZED,
    each_sampler,
    each_shape,
    equal_errors,
    every_sampler,
    learnable_starts,
    never,
    replay_of,
    replay_of_valid_rows,
)


def test_numbers_are_listed_by_lane():
    lane, number = list_numbers(np.array([3, 7, 0, -2]), np.array([5, 6, 0, -1]))
    assert lane.tolist() == [0, 0, 0, 2, 3, 3]
    assert number.tolist() == [3, 4, 5, 0, -2, -1]


@pytest.mark.parametrize("count", [[3], [0, 2, 0, 1], [1, 1, 0]])
def test_items_are_located_by_number(count):
    lane, which = locate_nth(np.array(count), np.arange(sum(count)))
    assert list(zip(lane, which, strict=True)) == [(k, i) for k, each in enumerate(count) for i in range(each)]


@pytest.mark.parametrize("valid_row", range(10))
def test_a_sequence_is_drawn_if_one_of_its_learned_rows_is_valid(valid_row):
    """Sequences start at columns of 10 rows; of their 5 rows the first 2 are burn-in."""
    replay = replay_of(PRIORITIZED, chunk=10, length=3, burn_in=2, stored_state_size=2)
    rollout = EncodedLanes(3, 10).rollout(0)
    rollout.first[:], rollout.alive[:] = True, True  # the last row of an episode that was truncated is invalid
    rollout.first[valid_row + 1] = False
    replay.add(rollout)
    assert (replay.sample(1) is not None) == (valid_row in (2, 3, 4))


def drawable(replay: Replay) -> set[tuple[int, int]]:
    """Return (lane, number) of all starts with a priority."""
    sampler = replay.sampler
    if isinstance(sampler, PRIORITIZED.func):
        slots = np.flatnonzero(sampler.tree.leaves)
        lane, slot = np.divmod(slots, sampler.sequences.slots)
        oldest = sampler.start_range.oldest[lane]
        number = oldest + (slot - oldest) % sampler.sequences.slots
    else:
        places = [
            (lane, place) for lane in range(len(sampler.end)) for place in range(sampler.begin[lane], sampler.end[lane])
        ]
        lane, place = np.array(places, np.int64).reshape(-1, 2).T
        number = sampler.number[sampler.sequences.find_slot(lane, place)]
    return set(zip(lane.tolist(), number.tolist(), strict=True))


def times(replay: Replay, lanes: EncodedLanes, numbers) -> set[tuple[int, int]]:
    return {(lane, lanes.written[lane][replay.sequences.first_row(number)]) for lane, number in numbers}


@each_sampler
@each_shape
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), loss=st.sampled_from([0.0, 0.2, 0.6]))
def test_exactly_the_complete_sequences_with_a_valid_row_can_be_drawn(sampler, shape, seed, loss):
    replay, lanes, rng = replay_of(sampler, **shape), EncodedLanes(3, shape["chunk"]), np.random.default_rng(seed)
    late = []
    for _ in range(15):
        chosen = rng.integers(3, size=3).tolist()
        replay.add(lanes.rollout(*chosen, lost=[lane for lane in set(chosen) if rng.random() < loss]))
        expected = learnable_starts(replay, lanes)
        assert times(replay, lanes, drawable(replay)) == expected
        batch = replay.sample(16)
        assert (batch is None) == (not expected)
        if batch:
            assert set(find_starts(batch)) <= expected
            assert_intact(batch)
            late.append(batch.index)
        if late and rng.random() < 0.7:
            index = late.pop(int(rng.integers(len(late))))  # its sequence may be overwritten by now
            errors = 10 ** rng.uniform(-3, 3, size=(2, len(index)))
            replay.prioritize(index, partial(np.copy, errors))
            assert times(replay, lanes, drawable(replay)) == expected


@each_sampler
@pytest.mark.parametrize("rollouts", [3, 50], ids=["new", "overwritten twice"])
@pytest.mark.parametrize(
    "shape", [{}, {"burn_in": 3, "warmup_rows": 3}, {"burn_in": 3, "warmup_rows": 2, "stored_state_size": 2}], ids=str
)
def test_errors_set_the_priorities_of_their_sequences(sampler, rollouts, shape):
    replay, lanes = replay_of(sampler, capacity=300, lanes=3, **shape), EncodedLanes(3, 5)
    for _ in range(rollouts):
        replay.add(lanes.rollout(0, 1, 2))
    batch = replay.sample(8)
    worst, others = batch.index[0], [index for index in batch.index if index != batch.index[0]]
    index = np.array([worst, *others])
    replay.prioritize(index, equal_errors(100, *[0.01] * len(others)))
    drawn = Counter(index for _ in range(20) for index in replay.sample(64).index.tolist())
    assert drawn.most_common(1)[0][0] == worst
    for _ in range(40):  # until other rows overwrite it
        replay.add(lanes.rollout(0, 1, 2))
    state = {name: value.copy() for name, value in replay.sampler.state().items()}
    replay.prioritize(index, never)
    for name, value in replay.sampler.state().items():
        np.testing.assert_array_equal(value, state[name])


@each_sampler
def test_errors_of_fresh_rollouts_and_nan_change_nothing(sampler):
    replay = replay_of(sampler)
    replay.add(EncodedLanes(3, 5).rollout(0, 1, 2))
    index = replay.sample(4).index
    before = {name: value.copy() for name, value in replay.sampler.state().items()}
    replay.prioritize(np.full(3, -1), never)
    replay.prioritize(index, lambda: np.full((2, 4), np.nan, np.float32))
    for name, value in replay.sampler.state().items():
        np.testing.assert_array_equal(value, before[name])


def test_uniform_replay_never_computes_errors():
    replay = replay_of()
    replay.add(EncodedLanes(3, 5).rollout(0, 1, 2))
    batch = replay.sample(4)
    replay.prioritize(batch.index, never)
    assert (batch.weight == 1).all() and replay.sampler.state() == {}


@every_sampler
@pytest.mark.parametrize("stored_state_size", [0, 2])
def test_a_restored_replay_continues_identically(sampler, stored_state_size, tmp_path):
    replay, other = (replay_of(sampler, stored_state_size=stored_state_size) for _ in range(2))
    lanes, rng = EncodedLanes(3, 5), np.random.default_rng(8)

    def advance(*replays):
        chosen = rng.integers(3, size=3).tolist()
        rollout = lanes.rollout(*chosen, lost=chosen[:1] if rng.random() < 0.3 else [])
        errors = rng.random((2, 16))
        batches = []
        for each in replays:
            each.add(rollout)
            batches.append(each.sample(16))
            if batches[-1]:
                each.prioritize(batches[-1].index, lambda: errors)
        return [batch for batch in batches if batch]

    for _ in range(17):
        advance(replay)
    np.savez(tmp_path / "replay.npz", **replay.state())
    with np.load(tmp_path / "replay.npz", allow_pickle=False) as arrays:
        other.restore(dict(arrays))
    other.rng.bit_generator.state = replay.rng.bit_generator.state
    for _ in range(20):
        ours, theirs = advance(replay, other)
        for name in ("index", "weight", "memory", "version"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
        assert_intact(theirs)
    for name, value in replay.state().items():
        np.testing.assert_array_equal(value, other.state()[name])


@every_sampler
@each_shape
def test_added_lanes_equal_initial_lanes(sampler, shape):
    grown, large = replay_of(sampler, **shape), replay_of(sampler, lanes=6, initial_lanes=3, **shape)
    lanes, rng = EncodedLanes(6, shape["chunk"]), np.random.default_rng(9)
    late = np.zeros(0, np.int64)
    for turn in range(40):
        if turn in (12, 25):
            grown.grow(4 if turn == 12 else 6)
        there = grown.ring.lanes
        chosen = rng.integers(there, size=there).tolist()
        rollout = lanes.rollout(*chosen, lost=[lane for lane in set(chosen) if rng.random() < 0.2])
        for replay in (grown, large):
            replay.add(rollout)
        ours, theirs = grown.sample(16), large.sample(16)
        assert (ours is None) == (theirs is None)
        if ours is None:
            continue
        assert_intact(ours)
        for name in ("index", "weight", "memory", "version"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
        index = np.append(ours.index, late)  # indices from before lanes were added stay valid
        errors = 10 ** rng.uniform(-2, 2, size=(2, len(index)))
        for replay in (grown, large):
            replay.prioritize(index, partial(np.copy, errors))
        late = ours.index[:5]
    ours, theirs = grown.state(), large.state()
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name], name)


@each_sampler
def test_priorities_of_sequences_of_another_length_are_rejected(sampler):
    saved = replay_of(sampler, length=4)
    saved.add(EncodedLanes(3, 5).rollout(0, 1, 2))
    with pytest.raises(ValueError, match=r"sequences with \[4, 0\] rows .* \[3, 0\]: resume with the lengths"):
        replay_of(sampler, length=3).restore(saved.state())


@pytest.mark.parametrize(("sampler", "state"), [(PRIORITIZED, ["tree"]), (LAZY, ["cells", "marks"])])
def test_the_bytes_per_start_equal_the_size_of_the_arrays(sampler, state):
    replay = replay_of(sampler, capacity=3 * 16**3, chunk=16)
    arrays = [value for value in vars(replay.sampler).values() if isinstance(value, np.ndarray)]
    levels = [level for name in state for level in getattr(replay.sampler, name).levels]
    starts = 3 * 16**3
    measured = sum(array.nbytes for array in arrays if len(array) == starts) + sum(level.nbytes for level in levels)
    assert measured == pytest.approx(sampler.func.BYTES_PER_START * starts, rel=0.01)


@each_sampler
def test_the_draws_of_a_batch_are_independent(sampler):
    """Each draw is from a separate part, at a separate position, so that the distance of two draws varies."""
    replay = replay_of_valid_rows(sampler, 200, 100)
    batches = np.stack([replay.sample(10).index for _ in range(200)])
    assert np.ptp(batches[:, 6] - batches[:, 3]) > 8


@pytest.mark.parametrize(
    ("name", "kind"),
    [("uniform", UniformSampler), ("Prioritized", PrioritizedSampler), ("lazy", LazyPrioritizedSampler)],
)
def test_the_settings_of_a_replay_are_passed_to_its_sampler(name, kind):
    given = {"alpha": 0.3, "beta": 0.2, "beta_increment_per_sampling": 0.1, "uniform_fraction": 0.25}
    given |= {"td_error_min": 0.02, "td_error_max": 5, "max_error_weight": 0.4, "sampler": name}
    sampler = make_sampler(resolve([("test", {"replay_config": given})]).replay)(Sequences(Ring(40, 2, 5), 4))
    assert type(sampler) is kind
    if kind is not UniformSampler:
        assert sampler.priority_function == PriorityFunction(max_error_weight=0.4, td_error_min=0.02, td_error_max=5)
        assert sampler.priority_function(np.array([[1.0], [0.5]])) == pytest.approx(0.4 + 0.6 * 0.5)
    if kind is PrioritizedSampler:
        assert (sampler.alpha, sampler.initial_beta, sampler.beta_increment) == (0.3, 0.2, 0.1)
    if kind is LazyPrioritizedSampler:
        assert sampler.uniform_fraction == 0.25
