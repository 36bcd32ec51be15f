"""The places of whole windows, counted without listing them."""

from __future__ import annotations

import numpy as np

from algorithm.replay.sequences import Span, Windows, listed


class Stretches:
    """The whole windows of each lane, as stretches of consecutive starts between breaks.

    A break is at the first row of a column. Each column is examined once, when windows are next counted: writing costs
    nothing. Counting costs in proportion to the lanes and to the columns written since the last time, finding to the
    windows that are found, both times the logarithm of the number of stretches.

    The newest stretch of a lane is open: `open` is its first row. Those before it are closed, and kept if they hold
    whole windows: numbered since the lane began, at that number modulo the width of the arrays.
    """

    def __init__(self, windows: Windows):
        self.windows = windows
        lanes = windows.lanes
        self.examined = np.zeros(lanes, np.int64)  # rows of each lane, since it began
        self.open = np.zeros(lanes, np.int64)
        self.closed = np.zeros(lanes, np.int64)  # whole windows of all closed stretches
        self.passed = np.zeros(lanes, np.int64)  # those of them that were overwritten when last counted
        self.begin, self.end = np.zeros(lanes, np.int64), np.zeros(lanes, np.int64)  # of the stretches that are kept
        self.first = np.zeros((lanes, 1), np.int64)  # number of the first start of a stretch
        self.before = np.zeros((lanes, 1), np.int64)  # whole windows of the lane before it

    def count(self, span: Span) -> np.ndarray:
        """Return how many windows of each lane [lanes] are whole now, `span` being the present one."""
        self._examine()
        lanes = np.arange(len(self.begin))
        self.begin = self._last(self.first, lanes, span.oldest)
        at, after = self.begin % self.width, (self.begin + 1) % self.width
        before = np.where(self.begin < self.end, self.before[lanes, at], self.closed)
        next_before = np.where(self.begin + 1 < self.end, self.before[lanes, after], self.closed)
        overwritten = np.maximum(span.oldest - self.first[lanes, at], 0)
        self.passed = before + np.minimum(overwritten, next_before - before)
        newest = np.maximum(span.newest - self._open_start(span) + 1, 0)
        return self.closed - self.passed + newest

    def find(self, span: Span, lane: np.ndarray, which: np.ndarray) -> np.ndarray:
        """Return the numbers of the starts of whole windows `which` [n] of lanes [n], counted from the oldest one."""
        place = self.passed[lane] + which
        at = self._last(self.before, lane, place) % self.width
        in_closed = self.first[lane, at] + place - self.before[lane, at]
        in_open = self._open_start(span)[lane] + place - self.closed[lane]
        return np.where(place < self.closed[lane], in_closed, in_open)

    @property
    def width(self) -> int:
        """Return the number of closed stretches of a lane for which there is room."""
        return self.first.shape[1]

    def _open_start(self, span: Span) -> np.ndarray:
        """Return the number of the first start of the open stretch [lanes] that is not overwritten."""
        return np.maximum(self._start(self.open), span.oldest)

    def _start(self, row: np.ndarray) -> np.ndarray:
        """Return the number of the first window that starts at each row [n] or after it."""
        return -(-(row + self.windows.lead) // self.windows.stride)

    def _last(self, values: np.ndarray, lane: np.ndarray, value: np.ndarray) -> np.ndarray:
        """Return the last stretch of each lane [n] whose entry in `values` is at most `value`; the first if none is."""
        low, high = self.begin[lane], self.end[lane]
        while (high - low > 1).any():
            middle = (low + high) // 2
            above = values[lane, middle % self.width] > value
            low, high = np.where(above, low, middle), np.where(above, middle, high)
        return low

    def _examine(self) -> None:
        """Close the stretches that ended with the columns written since the last time."""
        ring, windows = self.windows.ring, self.windows
        oldest = ring.head - ring.filled
        overwritten = self.examined < oldest  # with all that is known
        self.begin = np.where(overwritten, self.end, self.begin)
        self.open = np.where(overwritten, oldest, self.open)
        lane, column = listed(-(-np.maximum(self.examined, oldest) // ring.chunk), ring.head // ring.chunk - 1)
        self.examined = ring.head.copy()
        row = column * ring.chunk
        broken = ring.unbroken[lane, row % ring.rows] == 0
        lane, row = lane[broken], row[broken]
        if not len(lane):
            return
        is_first = np.append(True, lane[1:] != lane[:-1])
        first = self._start(np.where(is_first, self.open[lane], np.append(0, row[:-1])))
        self.open[lane] = row  # the last one of each lane
        last = (row - 1 - windows.length + windows.lead) // windows.stride
        some = last >= first
        self._append(lane[some], first[some], (last - first + 1)[some])

    def _append(self, lane: np.ndarray, first: np.ndarray, count: np.ndarray) -> None:
        """Keep closed stretches of `count` whole windows each, lane by lane and from the oldest on."""
        stretches = np.bincount(lane, minlength=len(self.end))
        self._widen(int((self.end + stretches - self.begin).max()))
        _, place = listed(self.end, self.end + stretches - 1)
        before = count.cumsum() - count
        before -= before[(stretches.cumsum() - stretches)[lane]]
        self.first[lane, place % self.width] = first
        self.before[lane, place % self.width] = self.closed[lane] + before
        self.end += stretches
        np.add.at(self.closed, lane, count)

    def _widen(self, needed: int) -> None:
        """Make room for as many stretches of each lane."""
        if needed <= self.width:
            return
        lane, stretch = listed(self.begin, self.end - 1)
        old, new = stretch % self.width, 2 ** (needed - 1).bit_length()
        wider = np.zeros((2, len(self.end), new), np.int64)
        wider[:, lane, stretch % new] = self.first[lane, old], self.before[lane, old]
        self.first, self.before = wider
