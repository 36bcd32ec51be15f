"""Uniform sampling of complete sequences, also from a ring with many breaks."""

from __future__ import annotations

import numpy as np

from algorithm.replay.sampler import SampledSequences, Sampler, Starts, list_numbers, locate_nth

MAX_REDRAWS = 8  # of sequences across a break, before complete sequences are listed


class UniformSampler(Sampler):
    """A sampler that draws all complete sequences with the same probability.

    It draws any start, and draws again if the sequence contains a break. After `MAX_REDRAWS` attempts it draws from a
    list of all complete sequences, which is made once after a write.
    """

    def _find_starts(self) -> None:
        super()._find_starts()
        self.count = np.maximum(self.start_range.newest - self.start_range.oldest + 1, 0)  # starts of each lane
        self.complete: Starts | None = None  # all complete sequences, sorted by lane and age, once they are listed

    def sample(self, rng: np.random.Generator, batch: int) -> SampledSequences | None:
        if not self.count.any():
            return None
        lane, number = self._draw_any(rng, batch)
        for _ in range(MAX_REDRAWS):
            to_redraw = np.flatnonzero(~self.sequences.is_unbroken(lane, number))
            if not len(to_redraw):
                return SampledSequences(lane, number, np.ones(batch, np.float32))
            lane[to_redraw], number[to_redraw] = self._draw_any(rng, len(to_redraw))
        if self.complete is None:
            lane, number = list_numbers(self.start_range.oldest, self.start_range.newest)
            is_complete = self.sequences.is_unbroken(lane, number)
            self.complete = lane[is_complete], number[is_complete]
        lane, number = self.complete
        if not len(lane):
            return None
        drawn = rng.integers(len(lane), size=batch)
        return SampledSequences(lane[drawn], number[drawn], np.ones(batch, np.float32))

    def _draw_any(self, rng: np.random.Generator, batch: int) -> Starts:
        lane, rank = locate_nth(self.count, rng.integers(self.count.sum(), size=batch))
        return lane, self.start_range.oldest[lane] + rank
