"""Which windows are drawn: the contract, what all priorities have in common, and no priorities."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from algorithm.replay.sequence_index import SequenceIndex
from algorithm.replay.sequences import Sequences, StartRange, Starts, locate_nth

MAX_REDRAWS = 8  # of windows across a break, before whole windows are counted

Errors = Callable[[], np.ndarray]  # [2, B] the largest and the mean error of each window's rows, computed when called


@dataclass(frozen=True)
class SampledSequences:
    """Windows [B] by lane and number of their starts, and how much each counts in the loss."""

    lane: np.ndarray
    number: np.ndarray
    weight: np.ndarray


class Sampler(ABC):
    """Draws windows of a ring. `BYTES_PER_START` are what it keeps for each start."""

    BYTES_PER_START = 0.0

    @abstractmethod
    def sample(self, rng: np.random.Generator, batch: int) -> SampledSequences | None:
        """`batch` windows, or None while there is none."""

    @abstractmethod
    def update_after_write(self) -> None:
        """Take note of what was written; called behind every write."""

    @abstractmethod
    def grow(self) -> None:
        """Include the empty lanes that were added to the ring."""

    @abstractmethod
    def prioritize(self, index: np.ndarray, errors: Errors) -> None:
        """Say what was learned of the windows of `index` [B]; those that are not there any more are passed over."""

    @abstractmethod
    def state(self) -> dict[str, np.ndarray]:
        """What a resumed run needs, as named arrays."""

    @abstractmethod
    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over what `state` gave, behind the ring."""


@dataclass(frozen=True)
class PriorityFunction:
    """What errors make of a window's priority (Kapturowski et al. 2019, section 2.3), and its bounds."""

    max_error_weight: float  # share of the largest error, the rest is the mean's
    td_error_min: float
    td_error_max: float

    def __call__(self, errors: np.ndarray) -> np.ndarray:
        """[B] of the largest and the mean errors [2, B]."""
        largest, mean = errors.astype(np.float64)
        return np.clip(
            self.max_error_weight * largest + (1 - self.max_error_weight) * mean, self.td_error_min, self.td_error_max
        )

    def compute_priorities(
        self, sequences: Sequences, start_range: StartRange, index: np.ndarray, errors: Errors
    ) -> tuple[Starts, np.ndarray]:
        """The starts of `index` that are there still, and their priorities; of no other number than a finite one.

        The errors of a fresh rollout, which no replay keeps, are not asked for.
        """
        (lane, number), is_stored = sequences.find_known_starts(index, start_range)
        if not is_stored.any():
            return (lane, number), np.zeros(0)
        priority = self(errors()[:, is_stored])
        finite = np.isfinite(priority)
        return (lane[finite], number[finite]), priority[finite]


class UniformSampler(Sampler):
    """A sampler that draws every whole window of every lane with the same probability.

    It draws any window, and again if there is a break in it. If that fails too often, it counts the whole windows.
    """

    def __init__(self, sequences: Sequences):
        self.sequences = sequences
        self.index = SequenceIndex(sequences)

    def sample(self, rng: np.random.Generator, batch: int) -> SampledSequences | None:
        start_range = self.sequences.compute_start_range()
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
        pass

    def grow(self) -> None:
        self.index = SequenceIndex(self.sequences)

    def prioritize(self, index: np.ndarray, errors: Errors) -> None:
        """There are no priorities, and errors are not computed."""

    def state(self) -> dict[str, np.ndarray]:
        return {}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        self.index = SequenceIndex(self.sequences)

    @staticmethod
    def _draw_any(rng: np.random.Generator, start_range: StartRange, batch: int) -> Starts:
        lane, rank = locate_nth(start_range.count, rng.integers(start_range.total, size=batch))
        return lane, start_range.oldest[lane] + rank

    def _draw_unbroken(self, rng: np.random.Generator, start_range: StartRange, batch: int) -> SampledSequences | None:
        """Draw from the whole windows alone."""
        count = self.index.count(start_range)
        total = int(count.sum())
        if not total:
            return None
        lane, rank = locate_nth(count, rng.integers(total, size=batch))
        return SampledSequences(lane, self.index.find(start_range, lane, rank), np.ones(batch, np.float32))
