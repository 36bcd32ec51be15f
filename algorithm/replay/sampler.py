"""The contract of samplers, and the priorities of sequences from their TD errors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from algorithm.replay.sequences import Sequences, StartRange, Starts

Errors = Callable[[], np.ndarray]  # computes [2, B], the largest and the mean absolute TD error of each sequence


@dataclass(frozen=True)
class SampledSequences:
    """Sampled sequences [B] by the lane and the number of their start, with their weight in the loss."""

    lane: np.ndarray
    number: np.ndarray
    weight: np.ndarray


class Sampler(ABC):
    """A rule that draws sequences from a ring. `BYTES_PER_START` is the memory that it needs per possible start."""

    BYTES_PER_START = 0.0

    @abstractmethod
    def sample(self, rng: np.random.Generator, batch: int) -> SampledSequences | None:
        """Draw `batch` sequences; None if there is no complete sequence."""

    @abstractmethod
    def update_after_write(self) -> None:
        """Include the rows that were written to the ring. Called after each write."""

    @abstractmethod
    def grow(self) -> None:
        """Include the empty lanes that were added to the ring."""

    @abstractmethod
    def prioritize(self, index: np.ndarray, errors: Errors) -> None:
        """Set the priorities of sequences after learning from them.

        Args:
            index: The index [B] of each sequence in the replay. Sequences that are not stored (any more) are skipped.
            errors: Computes the TD errors of the sequences; not called if no priority depends on them.
        """

    @abstractmethod
    def state(self) -> dict[str, np.ndarray]:
        """Return what a resumed run needs, as named arrays."""

    @abstractmethod
    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore the result of `state`. The ring must have been restored."""


@dataclass(frozen=True)
class PriorityFunction:
    """The priority of a sequence as a function of its TD errors (R2D2, Kapturowski et al. 2019, section 2.3).

    Attributes:
        max_error_weight: Weight of the largest error, from 0 to 1; the rest is the weight of the mean error (eta).
        td_error_min: Smallest priority.
        td_error_max: Largest priority.
    """

    max_error_weight: float
    td_error_min: float
    td_error_max: float

    def __call__(self, errors: np.ndarray) -> np.ndarray:
        """Return the priorities [B] of the largest and the mean errors [2, B]."""
        largest, mean = errors.astype(np.float64)
        return np.clip(
            self.max_error_weight * largest + (1 - self.max_error_weight) * mean, self.td_error_min, self.td_error_max
        )

    def compute_priorities(
        self, sequences: Sequences, start_range: StartRange, index: np.ndarray, errors: Errors
    ) -> tuple[Starts, np.ndarray]:
        """Return the starts among `index` that are still stored and have a finite priority, and their priorities.

        `errors` is not called if none is stored, as in a batch of fresh rollouts.
        """
        (lane, number), is_stored = sequences.find_known_starts(index, start_range)
        if not is_stored.any():
            return (lane, number), np.zeros(0)
        priority = self(errors()[:, is_stored])
        finite = np.isfinite(priority)
        return (lane[finite], number[finite]), priority[finite]
