from __future__ import annotations

import tempfile

import numpy as np

from algorithm.replay.ring import Ring, make_file_allocator
from tests.doubles import EncodedLanes


def read(ring: Ring, start: int, length: int, lane: int = 0):
    return ring.read(np.array([lane]), np.array([start]), length)


def test_rows_are_a_multiple_of_the_chunk():
    assert Ring(23, 2, 5).rows == 20


def test_a_break_between_columns_of_one_rollout_is_stored():
    ring, lanes = Ring(20, 2, 5), EncodedLanes(2, 5)
    ring.write(lanes.rollout(0, 1))
    rollout = lanes.rollout(0, 0, 1)
    rollout.continues_previous[1] = False
    ring.write(rollout)
    assert ring.is_unbroken(np.array([0, 1]), np.array([6, 2]), np.array([5, 8])).tolist() == [False, True]


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
    assert sequence.continues_previous.dtype == bool and not sequence.continues_previous.any()
    for name in ("first", "raw_action", "reward", "alive", "behavior"):
        assert getattr(sequence, name).dtype == getattr(rollout, name).dtype
    assert sequence.obs["image"].dtype == np.uint8


def test_arrays_in_files_are_in_the_folder_that_was_requested(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))  # no file can be made in the default folder
    allocate = make_file_allocator(tmp_path)
    for shape in ((3, 2), (0, 2)):
        array = allocate(shape, np.dtype(np.int16))
        assert array.shape == shape and array.dtype == np.int16 and not array.any()
