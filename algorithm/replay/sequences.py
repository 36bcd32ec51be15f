"""The windows of a ring: where they may start, and which of them came and went."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from algorithm.replay.ring import Ring

Starts = tuple[np.ndarray, np.ndarray]  # lanes [n], and numbers of starts there [n]


@dataclass(frozen=True)
class StartRange:
    """For each lane the numbers of the oldest and of the newest start that rows are there for."""

    oldest: np.ndarray  # [lanes]
    newest: np.ndarray  # [lanes] below the oldest where there is none

    @cached_property
    def count(self) -> np.ndarray:
        """[lanes] starts."""
        return np.maximum(self.newest - self.oldest + 1, 0)

    @cached_property
    def total(self) -> int:
        """Starts of all lanes."""
        return int(self.count.sum())


class Sequences:
    """Windows of `length` rows of a ring, which start `lead` rows before a multiple of `stride`.

    Starts are numbered within their lane, as long as the lane lives. The first `burn_in` rows are not learned from.
    """

    def __init__(self, ring: Ring, length: int, burn_in: int = 0, warmup_rows: int = 0, stride: int = 1):
        self.ring = ring
        self.length, self.burn_in, self.warmup_rows, self.stride = length, burn_in, warmup_rows, stride
        self.slots = ring.rows // stride  # never fewer than the starts of a lane

    @property
    def lanes(self) -> int:
        """Return the number of lanes of the ring, which may grow."""
        return self.ring.lanes

    @property
    def shape(self) -> np.ndarray:
        """[2] what decides which starts there are, beside the ring: rows, and how many of these are burn-in."""
        return np.array([self.length, self.burn_in])

    def check(self, saved: np.ndarray) -> None:
        """Raises ValueError where priorities were saved of windows of another shape."""
        if saved.tolist() != self.shape.tolist():
            raise ValueError(
                f"the saved priorities are of windows with {saved.tolist()} rows in all and burn-in rows; "
                f"these have {self.shape.tolist()}: resume with the lengths as they were"
            )

    def compute_start_range(self) -> StartRange:
        """The starts that there are now, across breaks too."""
        head = self.ring.head + self.warmup_rows
        return StartRange(-((self.ring.n_readable - head) // self.stride), (head - self.length) // self.stride)

    def first_row(self, number: np.ndarray) -> np.ndarray:
        """The first row [n] of windows, counted from the lane's beginning."""
        return number * self.stride - self.warmup_rows

    def find_slot(self, lane: np.ndarray, number: np.ndarray) -> np.ndarray:
        """Where an array [lanes * slots] keeps what is told of a start: `turn` is its number, or any other count."""
        return lane * self.slots + number % self.slots

    def find_start(self, slot: np.ndarray, oldest: np.ndarray) -> Starts:
        """The lane and the turn that each slot is of now, where `oldest` [lanes] are the oldest turns."""
        lane = slot // self.slots
        return lane, oldest[lane] + (slot - oldest[lane]) % self.slots

    def is_unbroken(self, lane: np.ndarray, number: np.ndarray) -> np.ndarray:
        """[n] which windows have no break between their rows."""
        return self.ring.is_unbroken(lane, self.first_row(number), self.length)

    def is_learnable(self, lane: np.ndarray, number: np.ndarray) -> np.ndarray:
        """[n] which windows are whole, and have something to learn before the next one starts."""
        n_rows = min(self.stride, self.length - self.burn_in)
        row = self.first_row(number) + self.burn_in + np.arange(n_rows)[:, None]
        return self.is_unbroken(lane, number) & self.ring.valid(lane, row).any(0)

    def compare_ranges(self, before: StartRange, now: StartRange) -> tuple[Starts, Starts, Starts]:
        """What has changed between two spans: starts that are overwritten, broken off, and newly worthwhile.

        Those of a lane come in their order. Only a lane's newest start can be broken off, by rows that do not follow.
        """
        overwritten = list_numbers(before.oldest, np.minimum(before.newest, now.oldest - 1))
        last = np.flatnonzero((before.newest >= before.oldest) & (before.newest >= now.oldest))
        last = last[~self.is_unbroken(last, before.newest[last])]
        lane, number = list_numbers(np.maximum(before.newest + 1, now.oldest), now.newest)
        new = self.is_learnable(lane, number)
        return overwritten, (last, before.newest[last]), (lane[new], number[new])

    def find_known_starts(self, index: np.ndarray, start_range: StartRange) -> tuple[Starts, np.ndarray]:
        """Which starts these are, of those that are there still, and which [n] of `index` that is."""
        lane, row = self.ring.find_row(index)
        number = (row + self.warmup_rows) // self.stride
        is_stored = (index >= 0) & (number >= start_range.oldest[lane])
        return (lane[is_stored], number[is_stored]), is_stored


def list_numbers(first: np.ndarray, last: np.ndarray) -> Starts:
    """Every number from the first to the last of each lane, lane by lane."""
    count = np.maximum(last - first + 1, 0)
    lane = np.repeat(np.arange(len(count)), count)
    return lane, np.arange(len(lane)) - (count.cumsum() - count)[lane] + first[lane]


def locate_nth(count: np.ndarray, number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lanes with `count` [lanes] things each: whose the things of these numbers [n] are, and which of its own."""
    ends = count.cumsum()
    lane = ends.searchsorted(number, side="right")
    return lane, number - ends[lane] + count[lane]
