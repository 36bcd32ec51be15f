"""Which windows are drawn: the contract, what all priorities have in common, and no priorities."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from algorithm.replay.sequence_index import Stretches
from algorithm.replay.sequences import Span, Starts, Windows, nth

REDRAWS = 8  # of windows across a break, before whole windows are counted

Errors = Callable[[], np.ndarray]  # [2, B] the largest and the mean error of each window's rows, computed when called


@dataclass(frozen=True)
class Drawn:
    """Windows [B] by lane and number of their starts, and how much each counts in the loss."""

    lane: np.ndarray
    number: np.ndarray
    weight: np.ndarray


class Sampler(ABC):
    """Draws windows of a ring. `BYTES` are what it keeps for each start."""

    BYTES = 0.0

    @abstractmethod
    def draw(self, rng: np.random.Generator, batch: int) -> Drawn | None:
        """`batch` windows, or None while there is none."""

    @abstractmethod
    def follow(self) -> None:
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
class Rating:
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

    def learned(self, windows: Windows, span: Span, index: np.ndarray, errors: Errors) -> tuple[Starts, np.ndarray]:
        """The starts of `index` that are there still, and their priorities; of no other number than a finite one.

        The errors of a fresh rollout, which no replay keeps, are not asked for.
        """
        (lane, number), there = windows.known(index, span)
        if not there.any():
            return (lane, number), np.zeros(0)
        priority = self(errors()[:, there])
        finite = np.isfinite(priority)
        return (lane[finite], number[finite]), priority[finite]


class Uniform(Sampler):
    """A sampler that draws every whole window of every lane with the same probability.

    It draws any window, and again if there is a break in it. If that fails too often, it counts the whole windows.
    """

    def __init__(self, windows: Windows):
        self.windows = windows
        self.stretches = Stretches(windows)

    def draw(self, rng: np.random.Generator, batch: int) -> Drawn | None:
        span = self.windows.span()
        if not span.total:
            return None
        lane, number = self._any(rng, span, batch)
        for _ in range(REDRAWS):
            broken = np.flatnonzero(~self.windows.whole(lane, number))
            if not len(broken):
                return Drawn(lane, number, np.ones(batch, np.float32))
            lane[broken], number[broken] = self._any(rng, span, len(broken))
        return self._from_stretches(rng, span, batch)

    def follow(self) -> None:
        pass

    def grow(self) -> None:
        self.stretches = Stretches(self.windows)

    def prioritize(self, index: np.ndarray, errors: Errors) -> None:
        """There are no priorities, and errors are not computed."""

    def state(self) -> dict[str, np.ndarray]:
        return {}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        self.stretches = Stretches(self.windows)

    @staticmethod
    def _any(rng: np.random.Generator, span: Span, batch: int) -> Starts:
        lane, which = nth(span.count, rng.integers(span.total, size=batch))
        return lane, span.oldest[lane] + which

    def _from_stretches(self, rng: np.random.Generator, span: Span, batch: int) -> Drawn | None:
        """Draw from the whole windows alone."""
        count = self.stretches.count(span)
        total = int(count.sum())
        if not total:
            return None
        lane, which = nth(count, rng.integers(total, size=batch))
        return Drawn(lane, self.stretches.find(span, lane, which), np.ones(batch, np.float32))
