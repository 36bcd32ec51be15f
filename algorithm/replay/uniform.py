"""Uniform sampling of sequences, and an index of complete sequences for rings with many breaks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from algorithm.replay.sampler import (
    Errors,
    SampledSequences,
    Sampler,
    Sequences,
    StartRange,
    Starts,
    list_numbers,
    locate_nth,
)

MAX_REDRAWS = 8  # of sequences across a break, before complete sequences are counted


class UniformSampler(Sampler):
    """A sampler that draws all complete sequences with the same probability.

    It draws any start, and draws again if the sequence contains a break. After `MAX_REDRAWS` attempts it draws from an
    index of the complete sequences.
    """

    def __init__(self, sequences: Sequences):
        self.sequences = sequences
        self._start_over()

    def sample(self, rng: np.random.Generator, batch: int) -> SampledSequences | None:
        start_range = self.start_range
        if not start_range.total:
            return None
        lane, number = self._draw_any(rng, start_range, batch)
        for _ in range(MAX_REDRAWS):
            to_redraw = np.flatnonzero(~self.sequences.is_unbroken(lane, number))
            if not len(to_redraw):
                return SampledSequences(lane, number, np.ones(batch, np.float32))
            lane[to_redraw], number[to_redraw] = self._draw_any(rng, start_range, len(to_redraw))
        return self._draw_unbroken(rng, start_range, batch)

    def update_after_write(self) -> None:
        self.start_range = self.sequences.compute_start_range()

    def grow(self) -> None:
        self._start_over()

    def prioritize(self, index: np.ndarray, errors: Errors) -> None:
        """Do nothing: there are no priorities."""

    def state(self) -> dict[str, np.ndarray]:
        return {}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        self._start_over()

    def _start_over(self) -> None:
        self.index = SequenceIndex(self.sequences)
        self.start_range = self.sequences.compute_start_range()

    @staticmethod
    def _draw_any(rng: np.random.Generator, start_range: StartRange, batch: int) -> Starts:
        lane, rank = start_range.locate(rng.integers(start_range.total, size=batch))
        return lane, start_range.oldest[lane] + rank

    def _draw_unbroken(self, rng: np.random.Generator, start_range: StartRange, batch: int) -> SampledSequences | None:
        """Draw from the index of complete sequences."""
        count = self.index.count(start_range)
        total = int(count.sum())
        if not total:
            return None
        lane, rank = locate_nth(count, rng.integers(total, size=batch))
        return SampledSequences(lane, self.index.find(start_range, lane, rank), np.ones(batch, np.float32))


class SequenceIndex:
    """The complete sequences of each lane, as runs of consecutive starts between breaks.

    A break is at the first row of a column. Each column is examined once, by the next `count`; writing takes no time.
    The time of `count` is proportional to the lanes and to the columns written since the last call, the time of `find`
    to the sequences to find; both are multiplied by the logarithm of the number of runs.

    The newest run of a lane is open and begins at `open_start_row`. The runs before it are closed, and stored if they
    contain complete sequences. Runs are numbered per lane; run i is stored in slot i modulo the width of the arrays.
    """

    def __init__(self, sequences: Sequences):
        self.sequences = sequences
        lanes = sequences.lanes
        self.n_examined = np.zeros(lanes, np.int64)  # rows of each lane, from its first one
        self.open_start_row = np.zeros(lanes, np.int64)
        self.n_closed = np.zeros(lanes, np.int64)  # complete sequences of all closed runs
        self.n_overwritten = np.zeros(lanes, np.int64)  # of n_closed, at the last count
        self.begin, self.end = np.zeros(lanes, np.int64), np.zeros(lanes, np.int64)  # of the stored runs
        self.first_start = np.zeros((lanes, 1), np.int64)  # number of the first start of each run
        self.n_before = np.zeros((lanes, 1), np.int64)  # complete sequences of the lane before each run

    def count(self, start_range: StartRange) -> np.ndarray:
        """Return the number of complete sequences of each lane [lanes]; `start_range` is the current one."""
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
        """Return the start numbers [n] of complete sequences, after `count`.

        Args:
            start_range: The current range of starts.
            lane: The lane [n] of each sequence.
            rank: The rank [n] of each among the complete sequences of its lane, from the oldest.
        """
        position = self.n_overwritten[lane] + rank
        slot = self._find_last(self.n_before, lane, position) % self.width
        in_closed = self.first_start[lane, slot] + position - self.n_before[lane, slot]
        in_open = self._first_open_start(start_range)[lane] + position - self.n_closed[lane]
        return np.where(position < self.n_closed[lane], in_closed, in_open)

    @property
    def width(self) -> int:
        """Number of closed runs per lane that the arrays can store."""
        return self.first_start.shape[1]

    def _first_open_start(self, start_range: StartRange) -> np.ndarray:
        """Return the first start number of each open run [lanes] that is not overwritten."""
        return np.maximum(self._first_start_after(self.open_start_row), start_range.oldest)

    def _first_start_after(self, row: np.ndarray) -> np.ndarray:
        """Return the number of the first sequence that starts at or after each row [n]."""
        return -(-(row + self.sequences.warmup_rows) // self.sequences.stride)

    def _find_last(self, values: np.ndarray, lane: np.ndarray, value: np.ndarray) -> np.ndarray:
        """Return the last run of each lane [n] whose entry in `values` is at most `value`, or else the first run."""
        low, high = self.begin[lane], self.end[lane]
        while (high - low > 1).any():
            middle = (low + high) // 2
            above = values[lane, middle % self.width] > value
            low, high = np.where(above, low, middle), np.where(above, middle, high)
        return low

    def _examine(self) -> None:
        """Close the runs that ended in the columns written since the last call."""
        ring, sequences = self.sequences.ring, self.sequences
        oldest = ring.head - ring.n_readable
        overwritten = self.n_examined < oldest  # including all stored runs
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
        self.open_start_row[lane] = row  # the last assignment to a lane is its newest break
        last = (row - 1 - sequences.length + sequences.warmup_rows) // sequences.stride
        is_nonempty = last >= first
        self._append_runs(lane[is_nonempty], first[is_nonempty], (last - first + 1)[is_nonempty])

    def _append_runs(self, lane: np.ndarray, first: np.ndarray, count: np.ndarray) -> None:
        """Store closed runs of `count` complete sequences each, sorted by lane and age."""
        runs = np.bincount(lane, minlength=len(self.end))
        self._widen(int((self.end + runs - self.begin).max()))
        _, place = list_numbers(self.end, self.end + runs - 1)
        before = count.cumsum() - count
        before -= before[(runs.cumsum() - runs)[lane]]
        self.first_start[lane, place % self.width] = first
        self.n_before[lane, place % self.width] = self.n_closed[lane] + before
        self.end += runs
        np.add.at(self.n_closed, lane, count)

    def _widen(self, needed: int) -> None:
        """Widen the arrays to store at least `needed` runs per lane."""
        if needed <= self.width:
            return
        lane, run = list_numbers(self.begin, self.end - 1)
        old, new = run % self.width, 2 ** (needed - 1).bit_length()
        wider = np.zeros((2, len(self.end), new), np.int64)
        wider[:, lane, run % new] = self.first_start[lane, old], self.n_before[lane, old]
        self.first_start, self.n_before = wider
