"""The replay: add rollouts, sample windows, prioritize."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from algorithm.replay.ring import Arrays, Ring
from algorithm.replay.sampler import Errors, Sampler, UniformSampler
from algorithm.replay.sequences import Sequences
from algorithm.replay.storage import IN_MEMORY, Allocator
from algorithm.rollout import Rollout

SAMPLER_PREFIX = "sampler/"  # before the names of the sampler's arrays


class Replay:
    """The last `capacity` rows over all lanes, and windows of `burn_in + length` rows from them, as a sampler draws.

    `chunk` is the number of rows of a collected column. `kept` is how many numbers of an agent's memory are kept, at
    the first row of a column; the windows of such an agent start `lead` rows before one, and others at any row. No
    window crosses a break in a lane.

    The `initial_lanes` (None: all lanes) share the capacity; every further lane has as many rows as one of them. Lanes
    that are added while nothing is stored become initial lanes.

    Raises ValueError where the capacity holds no window.
    """

    def __init__(
        self,
        capacity: int,
        lanes: int,
        chunk: int,
        length: int,
        rng: np.random.Generator,
        burn_in: int = 0,
        warmup_rows: int = 0,
        stored_state_size: int = 0,
        allocate: Allocator = IN_MEMORY,
        sampler: Callable[[Sequences], Sampler] = UniformSampler,
        initial_lanes: int | None = None,
    ):
        self.capacity, self.chunk, self.length, self.warmup_rows = capacity, chunk, burn_in + length, warmup_rows
        self.burn_in, self.stored_state_size = burn_in, stored_state_size
        self.rng = rng
        self._allocate, self._make_sampler = allocate, sampler
        self._start_empty(lanes, initial_lanes or lanes)

    def _start_empty(self, lanes: int, initial_lanes: int) -> None:
        """Start with empty lanes."""
        stride = self.chunk if self.stored_state_size else 1
        ring = Ring(self.capacity // initial_lanes, lanes, self.chunk, self._allocate)
        needed = -(-(self.length - self.warmup_rows) // stride) * stride + self.warmup_rows + 1
        if ring.rows < needed:
            raise ValueError(
                f"capacity: {self.capacity} rows over {initial_lanes} lanes hold no window of {self.length} rows; "
                f"at least {-(-needed // self.chunk) * self.chunk * initial_lanes} are needed"
            )
        self.ring, self.initial_lanes = ring, initial_lanes
        self.sequences = Sequences(ring, self.length, self.burn_in, self.warmup_rows, stride)
        self.sampler = self._make_sampler(self.sequences)

    @property
    def rows(self) -> int:
        """Rows stored, over all lanes."""
        return int(self.ring.n_readable.sum())

    def grow(self, lanes: int) -> None:
        """Add lanes, up to `lanes` lanes. Raises ValueError if the capacity then holds no window."""
        if not self.rows:
            self._start_empty(lanes, lanes)
            return
        self.ring.grow(lanes)
        self.sampler.grow()

    def add(self, rollout: Rollout) -> None:
        """Store a collected rollout."""
        self.ring.write(replace(rollout, memory=rollout.memory[:, : self.stored_state_size]))
        self.sampler.update_after_write()

    def sample(self, batch: int) -> Rollout | None:
        """`batch` windows, each with its weight in the loss, or None while there is no whole window yet."""
        sampled = self.sampler.sample(self.rng, batch)
        if sampled is None:
            return None
        sequences = self.sequences
        rollout = self.ring.read(
            sampled.lane, sequences.first_row(sampled.number), sequences.length, sequences.warmup_rows
        )
        return replace(rollout, weight=sampled.weight, burn_in=self.burn_in)

    def prioritize(self, index: np.ndarray, errors: Errors) -> None:
        """Say what was learned of the windows of `index` [B]: `errors` gives [2, B], the largest and the mean of each.

        They are asked for only where they matter. Fresh rollouts (-1) and what is overwritten by now is passed over.
        """
        self.sampler.prioritize(index, errors)

    def state(self) -> Arrays:
        """Everything stored and every priority, as named arrays."""
        return {**self.ring.state(), **{SAMPLER_PREFIX + name: value for name, value in self.sampler.state().items()}}

    def restore(self, state: Arrays) -> None:
        """Take over what `state` gave. Raises ValueError where it was another size of replay."""
        sampler_state = {name: value for name, value in state.items() if name.startswith(SAMPLER_PREFIX)}
        self.ring.restore({name: value for name, value in state.items() if name not in sampler_state})
        self.sampler.restore({name.removeprefix(SAMPLER_PREFIX): value for name, value in sampler_state.items()})
