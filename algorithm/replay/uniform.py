"""Uniform sampling of complete sequences, also from a ring with many breaks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from algorithm.replay.sampler import SampledSequences, Sampler, Sequences, StartRange, Starts, list_numbers, locate_nth

MAX_REDRAWS = 8  # of sequences across a break, before complete sequences are counted


class UniformSampler(Sampler):
    """A sampler that draws all complete sequences with the same probability.

    It draws any start, and draws again if the sequence contains a break. After `MAX_REDRAWS` attempts it draws from the
    runs of complete sequences, which are listed once after a write.
    """

    def sample(self, rng: np.random.Generator, batch: int) -> SampledSequences | None:
        if not self.start_range.total:
            return None
        lane, number = self._draw_any(rng, batch)
        for _ in range(MAX_REDRAWS):
            to_redraw = np.flatnonzero(~self.sequences.is_unbroken(lane, number))
            if not len(to_redraw):
                return SampledSequences(lane, number, np.ones(batch, np.float32))
            lane[to_redraw], number[to_redraw] = self._draw_any(rng, len(to_redraw))
        return self._draw_unbroken(rng, batch)

    def _find_starts(self) -> None:
        super()._find_starts()
        self.runs: Runs | None = None  # of the stored rows, if they are listed already

    def _draw_any(self, rng: np.random.Generator, batch: int) -> Starts:
        lane, rank = locate_nth(self.start_range.count, rng.integers(self.start_range.total, size=batch))
        return lane, self.start_range.oldest[lane] + rank

    def _draw_unbroken(self, rng: np.random.Generator, batch: int) -> SampledSequences | None:
        """Draw from the runs of complete sequences."""
        runs = self.runs = self.runs or list_runs(self.sequences, self.start_range)
        total = int(runs.count.sum())
        if not total:
            return None
        run, rank = locate_nth(runs.count, rng.integers(total, size=batch))
        return SampledSequences(runs.lane[run], runs.first[run] + rank, np.ones(batch, np.float32))


@dataclass(frozen=True)
class Runs:
    """Runs of complete sequences with consecutive numbers, sorted by lane and age."""

    lane: np.ndarray  # the lane of each run
    first: np.ndarray  # the number of its first sequence
    count: np.ndarray  # its sequences, 0 if the breaks around it are too close to each other


def list_runs(sequences: Sequences, start_range: StartRange) -> Runs:
    """Return the runs between the breaks of a ring, each of which is at the first row of a column."""
    ring = sequences.ring
    oldest = ring.head - ring.n_readable
    lane, column = list_numbers(-(-oldest // ring.chunk), ring.head // ring.chunk - 1)
    is_break = ring.unbroken_rows[lane, column * ring.chunk % ring.rows] == 0
    lane = np.append(np.arange(ring.lanes), lane[is_break])
    row = np.append(oldest, column[is_break] * ring.chunk)  # the first row of each run
    order = lane.argsort(kind="stable")
    lane, row = lane[order], row[order]
    is_newest = np.append(lane[1:] != lane[:-1], True)
    last_row = np.where(is_newest, ring.head[lane], np.append(row[1:], 0) - 1)  # the last successor of a run
    first = np.maximum(-(-(row + sequences.warmup_rows) // sequences.stride), start_range.oldest[lane])
    last = (last_row - sequences.length + sequences.warmup_rows) // sequences.stride
    return Runs(lane, first, np.maximum(last - first + 1, 0))
