"""The places of whole windows, counted without listing them."""

from __future__ import annotations

import numpy as np

from algorithm.replay.sequences import Sequences, StartRange, list_numbers


class SequenceIndex:
    """The whole windows of each lane, as stretches of consecutive starts between breaks.

    A break is at the first row of a column. Each column is examined once, when windows are next counted: writing costs
    nothing. Counting costs in proportion to the lanes and to the columns written since the last time, finding to the
    windows that are found, both times the logarithm of the number of stretches.

    The newest stretch of a lane is open: `open` is its first row. Those before it are closed, and kept if they hold
    whole windows: numbered since the lane began, at that number modulo the width of the arrays.
    """

    def __init__(self, sequences: Sequences):
        self.sequences = sequences
        lanes = sequences.lanes
        self.n_examined = np.zeros(lanes, np.int64)  # rows of each lane, since it began
        self.open_start_row = np.zeros(lanes, np.int64)
        self.n_closed = np.zeros(lanes, np.int64)  # whole windows of all closed stretches
        self.n_overwritten = np.zeros(lanes, np.int64)  # those of them that were overwritten when last counted
        self.begin, self.end = np.zeros(lanes, np.int64), np.zeros(lanes, np.int64)  # of the stretches that are kept
        self.first_start = np.zeros((lanes, 1), np.int64)  # number of the first start of a stretch
        self.n_before = np.zeros((lanes, 1), np.int64)  # whole windows of the lane before it

    def count(self, start_range: StartRange) -> np.ndarray:
        """Return how many windows of each lane [lanes] are whole now, `span` being the present one."""
        self._examine()
        lanes = np.arange(len(self.begin))
        self.begin = self._find_last(self.first_start, lanes, start_range.oldest)
        slot, next_slot = self.begin % self.width, (self.begin + 1) % self.width
        before = np.where(self.begin < self.end, self.n_before[lanes, slot], self.n_closed)
        next_before = np.where(self.begin + 1 < self.end, self.n_before[lanes, next_slot], self.n_closed)
        overwritten = np.maximum(start_range.oldest - self.first_start[lanes, slot], 0)
        self.n_overwritten = before + np.minimum(overwritten, next_before - before)
        newest = np.maximum(start_range.newest - self._first_open_start(start_range) + 1, 0)
        return self.n_closed - self.n_overwritten + newest

    def find(self, start_range: StartRange, lane: np.ndarray, rank: np.ndarray) -> np.ndarray:
        """Return the numbers of the starts of whole windows `which` [n] of lanes [n], counted from the oldest one."""
        position = self.n_overwritten[lane] + rank
        slot = self._find_last(self.n_before, lane, position) % self.width
        in_closed = self.first_start[lane, slot] + position - self.n_before[lane, slot]
        in_open = self._first_open_start(start_range)[lane] + position - self.n_closed[lane]
        return np.where(position < self.n_closed[lane], in_closed, in_open)

    @property
    def width(self) -> int:
        """Return the number of closed stretches of a lane for which there is room."""
        return self.first_start.shape[1]

    def _first_open_start(self, start_range: StartRange) -> np.ndarray:
        """Return the number of the first start of the open stretch [lanes] that is not overwritten."""
        return np.maximum(self._first_start_after(self.open_start_row), start_range.oldest)

    def _first_start_after(self, row: np.ndarray) -> np.ndarray:
        """Return the number of the first window that starts at each row [n] or after it."""
        return -(-(row + self.sequences.warmup_rows) // self.sequences.stride)

    def _find_last(self, values: np.ndarray, lane: np.ndarray, value: np.ndarray) -> np.ndarray:
        """Return the last stretch of each lane [n] whose entry in `values` is at most `value`; the first if none is."""
        low, high = self.begin[lane], self.end[lane]
        while (high - low > 1).any():
            middle = (low + high) // 2
            above = values[lane, middle % self.width] > value
            low, high = np.where(above, low, middle), np.where(above, middle, high)
        return low

    def _examine(self) -> None:
        """Close the stretches that ended with the columns written since the last time."""
        ring, sequences = self.sequences.ring, self.sequences
        oldest = ring.head - ring.n_readable
        overwritten = self.n_examined < oldest  # with all that is known
        self.begin = np.where(overwritten, self.end, self.begin)
        self.open_start_row = np.where(overwritten, oldest, self.open_start_row)
        lane, column = list_numbers(-(-np.maximum(self.n_examined, oldest) // ring.chunk), ring.head // ring.chunk - 1)
        self.n_examined = ring.head.copy()
        row = column * ring.chunk
        broken = ring.unbroken_rows[lane, row % ring.rows] == 0
        lane, row = lane[broken], row[broken]
        if not len(lane):
            return
        is_first = np.append(True, lane[1:] != lane[:-1])
        first = self._first_start_after(np.where(is_first, self.open_start_row[lane], np.append(0, row[:-1])))
        self.open_start_row[lane] = row  # the last one of each lane
        last = (row - 1 - sequences.length + sequences.warmup_rows) // sequences.stride
        is_nonempty = last >= first
        self._append_runs(lane[is_nonempty], first[is_nonempty], (last - first + 1)[is_nonempty])

    def _append_runs(self, lane: np.ndarray, first: np.ndarray, count: np.ndarray) -> None:
        """Keep closed stretches of `count` whole windows each, lane by lane and from the oldest on."""
        stretches = np.bincount(lane, minlength=len(self.end))
        self._widen(int((self.end + stretches - self.begin).max()))
        _, place = list_numbers(self.end, self.end + stretches - 1)
        before = count.cumsum() - count
        before -= before[(stretches.cumsum() - stretches)[lane]]
        self.first_start[lane, place % self.width] = first
        self.n_before[lane, place % self.width] = self.n_closed[lane] + before
        self.end += stretches
        np.add.at(self.n_closed, lane, count)

    def _widen(self, needed: int) -> None:
        """Make room for as many stretches of each lane."""
        if needed <= self.width:
            return
        lane, stretch = list_numbers(self.begin, self.end - 1)
        old, new = stretch % self.width, 2 ** (needed - 1).bit_length()
        wider = np.zeros((2, len(self.end), new), np.int64)
        wider[:, lane, stretch % new] = self.first_start[lane, old], self.n_before[lane, old]
        self.first_start, self.n_before = wider
