"""The contract of samplers: the sequences of a ring that they draw from, and the priorities of these sequences."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from algorithm.replay.ring import Ring
from algorithm.rollout import TD_ERROR

Starts = tuple[np.ndarray, np.ndarray]  # lanes [n] and start numbers [n]
Errors = Callable[[], np.ndarray]  # computes [2, B], the largest and the mean absolute TD error of each sequence


@dataclass(frozen=True)
class StartRange:
    """The oldest and the newest start number of each lane [lanes] whose rows are stored; newest < oldest: none."""

    oldest: np.ndarray
    newest: np.ndarray


class Sequences:
    """The sequences of `length` rows in a ring, which start at numbered rows of each lane.

    Start number i is at row i * stride - warmup_rows, counted from the first row of the lane. Numbers are not reused
    during a run. A sequence is complete if it has no break between its rows.

    Args:
        ring: The ring.
        length: Rows of a sequence, including burn-in rows.
        burn_in: The first rows, which are not learned from.
        warmup_rows: The first of the burn-in rows, before the row whose memory is stored.
        stride: Rows between starts: 1, or the rows of a column if the ring stores the agent's memory.
    """

    def __init__(self, ring: Ring, length: int, burn_in: int = 0, warmup_rows: int = 0, stride: int = 1):
        self.ring = ring
        self.length, self.burn_in, self.warmup_rows, self.stride = length, burn_in, warmup_rows, stride
        self.slots = ring.rows // stride  # at least the number of starts of a lane

    @property
    def shape(self) -> np.ndarray:
        """Rows of a sequence and burn-in rows [2], which determine the starts for a given ring."""
        return np.array([self.length, self.burn_in])

    def compute_start_range(self) -> StartRange:
        """Return the range of starts whose rows are stored now, with or without a break."""
        head = self.ring.head + self.warmup_rows
        return StartRange(-((self.ring.n_readable - head) // self.stride), (head - self.length) // self.stride)

    def first_row(self, number: np.ndarray) -> np.ndarray:
        """Return the first row [n] of sequences, counted from the first row of the lane."""
        return number * self.stride - self.warmup_rows

    def find_slot(self, lane: np.ndarray, number: np.ndarray) -> np.ndarray:
        """Return the slot [n] in an array [lanes * slots] of starts, given their number or another count per lane."""
        return lane * self.slots + number % self.slots

    def find_start(self, slot: np.ndarray, oldest: np.ndarray) -> Starts:
        """Return the lane and the number (or other count) of each slot, given the `oldest` of each lane [lanes]."""
        lane = slot // self.slots
        return lane, oldest[lane] + (slot - oldest[lane]) % self.slots

    def is_unbroken(self, lane: np.ndarray, number: np.ndarray) -> np.ndarray:
        """Return whether sequences [n] have no break between their rows."""
        return self.ring.is_unbroken(lane, self.first_row(number), self.length)

    def is_learnable(self, lane: np.ndarray, number: np.ndarray) -> np.ndarray:
        """Return whether sequences [n] are complete and have a valid row before the start of the next one."""
        n_rows = min(self.stride, self.length - self.burn_in)
        row = self.first_row(number) + self.burn_in + np.arange(n_rows)[:, None]
        return self.is_unbroken(lane, number) & self.ring.valid(lane, row).any(0)

    def compare_ranges(self, before: StartRange, now: StartRange) -> tuple[Starts, Starts, Starts]:
        """Return the starts that changed between two ranges, each kind sorted by lane and age.

        Returns:
            The starts that were overwritten; those that were broken, the newest of a lane whose next rows do not
            continue it; and the new starts with a valid row.
        """
        overwritten = list_numbers(before.oldest, np.minimum(before.newest, now.oldest - 1))
        last = np.flatnonzero((before.newest >= before.oldest) & (before.newest >= now.oldest))
        last = last[~self.is_unbroken(last, before.newest[last])]
        lane, number = list_numbers(np.maximum(before.newest + 1, now.oldest), now.newest)
        new = self.is_learnable(lane, number)
        return overwritten, (last, before.newest[last]), (lane[new], number[new])

    def compute_recorded_errors(self, lane: np.ndarray, number: np.ndarray) -> np.ndarray:
        """Return the largest and the mean absolute TD error [2, n] of sequences, as recorded when they were collected.

        They are those of the valid rows after the burn-in.
        """
        row = self.first_row(number) + np.arange(self.burn_in, self.length)[:, None]
        errors = self.ring.arrays[f"records/{TD_ERROR}"][lane, row % self.ring.rows]
        n_valid = self.ring.valid(lane, row).sum(0)
        return np.stack((errors.max(0), errors.sum(0) / np.maximum(n_valid, 1)))


def list_numbers(first: np.ndarray, last: np.ndarray) -> Starts:
    """Return all numbers from `first` to `last` [lanes] of each lane, sorted by lane."""
    count = np.maximum(last - first + 1, 0)
    lane = np.repeat(np.arange(len(count)), count)
    return lane, np.arange(len(lane)) - (count.cumsum() - count)[lane] + first[lane]


def locate_nth(count: np.ndarray, number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the group and the rank in it of items by their number [n] over groups with `count` [k] items each."""
    ends = count.cumsum()
    group = ends.searchsorted(number, side="right")
    return group, number - ends[group] + count[group]


@dataclass(frozen=True)
class SampledSequences:
    """Sampled sequences [B] by the lane and the number of their start, with their weight in the loss."""

    lane: np.ndarray
    number: np.ndarray
    weight: np.ndarray


@dataclass(frozen=True)
class PriorityFunction:
    """The priority of a sequence as a function of its TD errors (R2D2, Kapturowski et al. 2019, section 2.3)."""

    max_error_weight: float  # of the largest error, from 0 to 1; the rest is the weight of the mean error (eta)
    td_error_min: float  # smallest priority
    td_error_max: float  # largest priority

    def __call__(self, errors: np.ndarray) -> np.ndarray:
        """Return the priorities [B] of the largest and the mean errors [2, B]."""
        largest, mean = errors.astype(np.float64)
        return np.clip(
            self.max_error_weight * largest + (1 - self.max_error_weight) * mean, self.td_error_min, self.td_error_max
        )


class Sampler(ABC):
    """A rule that draws sequences from a ring. `BYTES_PER_START` is the memory that it needs per possible start."""

    BYTES_PER_START = 0.0

    def __init__(self, sequences: Sequences):
        self.sequences = sequences
        self._find_starts()

    def _find_starts(self) -> None:
        """Find the starts in the ring as it is now."""
        self.start_range = self.sequences.compute_start_range()

    @abstractmethod
    def sample(self, rng: np.random.Generator, batch: int) -> SampledSequences | None:
        """Draw `batch` sequences; None if there is no complete sequence."""

    def update_after_write(self) -> None:
        """Include the rows that were written to the ring. Called after each write."""
        self._find_starts()

    def grow(self) -> None:
        """Include the empty lanes that were added to the ring."""
        self._find_starts()

    def prioritize(self, index: np.ndarray, errors: Errors) -> None:
        """Set the priorities of sequences after learning from them; do nothing without priorities.

        Args:
            index: The index [B] of each sequence in the replay. Sequences that are not stored (any more) are skipped.
            errors: Computes the TD errors of the sequences; not called if no priority depends on them.
        """

    def state(self) -> dict[str, np.ndarray]:
        """Return what a resumed run needs, as named arrays."""
        return {}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore the result of `state`. The ring must have been restored."""
        self._find_starts()


class PrioritySampler(Sampler):
    """A sampler of complete sequences that have a valid row, by priorities that depend on their TD errors.

    Args:
        sequences: The sequences to draw from.
        priority_function: The priority of a sequence.
        uses_recorded_errors: Whether new sequences have the priority of their recorded TD errors, if these are finite.
    """

    SETTINGS: Sequence[str] = ()  # further arguments, which are settings of these names

    def __init__(self, sequences: Sequences, priority_function: PriorityFunction, uses_recorded_errors: bool):
        super().__init__(sequences)
        self.priority_function, self.uses_recorded_errors = priority_function, uses_recorded_errors

    @abstractmethod
    def replace(self, overwritten: Starts, broken: Starts, new: Starts) -> None:
        """Remove and add starts, as `Sequences.compare_ranges` returned them."""

    @abstractmethod
    def assign(self, starts: Starts, priority: np.ndarray) -> None:
        """Set the priorities [n] of those of some starts that can be drawn."""

    def update_after_write(self) -> None:
        before = self.start_range
        self._find_starts()
        overwritten, broken, new = self.sequences.compare_ranges(before, self.start_range)
        self.replace(overwritten, broken, new)
        if self.uses_recorded_errors:
            self._assign_finite(new, self.sequences.compute_recorded_errors(*new))

    def prioritize(self, index: np.ndarray, errors: Errors) -> None:
        lane, row = self.sequences.ring.find_row(index)
        number = (row + self.sequences.warmup_rows) // self.sequences.stride
        is_stored = (index >= 0) & (number >= self.start_range.oldest[lane])
        if is_stored.any():  # none is in a batch of fresh rollouts
            self._assign_finite((lane[is_stored], number[is_stored]), errors()[:, is_stored])

    def _assign_finite(self, starts: Starts, errors: np.ndarray) -> None:
        """Set the priorities of starts by their errors [2, n], except those that are not finite."""
        lane, number = starts
        priority = self.priority_function(errors)
        finite = np.isfinite(priority)
        self.assign((lane[finite], number[finite]), priority[finite])

    def state(self) -> dict[str, np.ndarray]:
        return {"sequences": self.sequences.shape}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        saved, current = state["sequences"].tolist(), self.sequences.shape.tolist()
        if saved != current:
            raise ValueError(
                f"the saved priorities are of sequences with {saved} rows and burn-in rows; these have {current}: "
                "resume with the lengths of the saved run"
            )
        super().restore(state)
