from __future__ import annotations

import tempfile

import numpy as np
import pytest

from algorithm.replay.ring import WIDE_ROW_BYTES, Ring, make_file_allocator
from tests.doubles import EncodedLanes, assert_intact, find_starts


@pytest.fixture(autouse=True, params=[WIDE_ROW_BYTES, 1], ids=["rows are narrow", "rows are wide"])
def widths(request, monkeypatch):
    monkeypatch.setattr("algorithm.replay.ring.WIDE_ROW_BYTES", request.param)


def read(ring: Ring, start: int, length: int, lane: int = 0):
    return ring.read(np.array([lane]), np.array([start]), length)


def is_complete(ring: Ring, start: int, length: int, lane: int = 0) -> bool:
    return bool(ring.is_unbroken(np.array([lane]), np.array([start]), length)[0])


def written(rows: int, chunk: int, columns: int, lost=()) -> tuple[Ring, EncodedLanes]:
    """Return a ring of one lane after `columns` columns, with a break before those in `lost`."""
    ring, lanes = Ring(rows, 1, chunk), EncodedLanes(1, chunk)
    for column in range(columns):
        ring.write(lanes.rollout(0, lost=[0] if column in lost else []))
    return ring, lanes


def test_rows_are_a_multiple_of_the_chunk():
    assert Ring(23, 2, 5).rows == 20


@pytest.mark.parametrize("columns", range(1, 12))
def test_all_readable_rows_can_be_read(columns):
    ring, _ = written(rows=16, chunk=4, columns=columns)
    filled = int(ring.n_readable[0])
    assert filled == min(4 * columns, 15)
    for length in range(1, filled + 1):
        for start in range(4 * columns - filled, 4 * columns - length + 1):
            sequence = read(ring, start, length)
            assert find_starts(sequence) == [(0, start)]
            assert_intact(sequence)
            assert is_complete(ring, start, length)


def test_the_observation_after_the_last_row_is_its_successor():
    ring, _ = written(rows=12, chunk=4, columns=5)
    last = read(ring, start=19, length=1)
    assert last.obs["vector"][:, 0, 0].tolist() == [19, 20]
    assert last.first.shape == (2, 1)


@pytest.mark.parametrize("lost", range(1, 5))
def test_exactly_the_sequences_across_a_break_are_incomplete(lost):
    ring, _ = written(rows=24, chunk=4, columns=5, lost=[lost])
    broken = 4 * lost
    for length in range(1, 12):
        for start in range(20 - length + 1):
            # The row before a break is incomplete: the row after the break overwrote its successor.
            assert is_complete(ring, start, length) == (not start < broken <= start + length)


def test_a_break_is_removed_when_it_is_overwritten():
    ring, _ = written(rows=12, chunk=4, columns=6, lost=[3])
    assert all(is_complete(ring, start, length=6) for start in range(13, 19))


def test_columns_of_one_lane_in_one_rollout_are_consecutive():
    ring, lanes = Ring(20, 3, 5), EncodedLanes(3, 5)
    ring.write(lanes.rollout(1, 0, 1, 1))
    ring.write(lanes.rollout(0, 2, 1))
    assert ring.head.tolist() == [10, 20, 5]
    for lane, rows in enumerate([10, 19, 5]):
        sequence = read(ring, int(ring.head[lane]) - rows, rows, lane)
        assert_intact(sequence)
        assert is_complete(ring, int(ring.head[lane]) - rows, rows, lane)


def test_a_break_between_columns_of_one_rollout_is_stored():
    ring, lanes = Ring(20, 2, 5), EncodedLanes(2, 5)
    ring.write(lanes.rollout(0, 1))
    rollout = lanes.rollout(0, 0, 1)
    rollout.continues_previous[1] = False
    ring.write(rollout)
    assert not is_complete(ring, 6, 5, lane=0)
    assert is_complete(ring, 2, 8, lane=1)


def test_lanes_are_independent():
    ring, lanes = Ring(10, 3, 5), EncodedLanes(3, 5)
    ring.write(lanes.rollout(0, 1, 2))
    for _ in range(5):
        ring.write(lanes.rollout(1, 1, 1))
    for lane in (0, 2):
        assert_intact(read(ring, 0, 5, lane))
        assert is_complete(ring, 0, 5, lane)


def test_memory_and_version_belong_to_the_column_that_starts_at_the_row():
    ring, lanes = Ring(15, 2, 5), EncodedLanes(2, 5)
    for _ in range(7):
        ring.write(lanes.rollout(0, 1))
    for start in (25, 30):
        sequence = read(ring, start, 4, lane=1)
        assert sequence.memory.tolist() == [[1, start]]
        assert sequence.version.tolist() == [10 * start]


def test_the_index_of_every_sequence_is_unique():
    ring, lanes = Ring(20, 3, 5), EncodedLanes(3, 5)
    for _ in range(3):
        ring.write(lanes.rollout(0, 1, 2))
    lane, start = np.divmod(np.arange(30), 10)
    index = ring.read(lane, start, 5).index
    assert len(set(index.tolist())) == 30
    for found, given in zip(ring.find_row(index), (lane, start), strict=True):
        np.testing.assert_array_equal(found, given)
    assert (ring.make_index(np.array([0, 2**22]), np.array([0, 2**39])) >= 0).all()  # far above real numbers


def test_dtypes_are_unchanged():
    ring, lanes = Ring(10, 1, 5), EncodedLanes(1, 5)
    rollout = lanes.rollout(0)
    ring.write(rollout)
    sequence = read(ring, 0, 5)
    for name in ("first", "raw_action", "reward", "alive", "behavior"):
        assert getattr(sequence, name).dtype == getattr(rollout, name).dtype
    assert sequence.obs["image"].dtype == np.uint8


def test_arrays_in_files_are_in_the_folder_that_was_requested(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))  # no file can be made in the default folder
    allocate = make_file_allocator(tmp_path)
    for shape in ((3, 2), (0, 2)):
        array = allocate(shape, np.dtype(np.int16))
        assert array.shape == shape and array.dtype == np.int16 and not array.any()


@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize("start", range(8))
def test_a_sequence_has_the_memory_of_its_column_and_weight_one(start, chunk):
    ring, _ = written(rows=16, chunk=chunk, columns=12 // chunk)
    sequence, column = read(ring, start, 2), start // chunk * chunk
    assert sequence.memory[0].tolist() == [0, column] and sequence.version.tolist() == [10 * column]
    assert sequence.weight.dtype == np.float32 and sequence.weight.tolist() == [1]
    assert sequence.continues_previous.dtype == bool and not sequence.continues_previous.any()
