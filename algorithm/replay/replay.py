"""The replay: add rollouts, sample windows, prioritize."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from algorithm.replay.ring import Arrays, Ring
from algorithm.replay.sampler import Errors, Sampler, Uniform
from algorithm.replay.sequences import Windows
from algorithm.replay.storage import IN_MEMORY, Allocate
from algorithm.rollout import Rollout

SAMPLER = "sampler/"  # before the names of the sampler's arrays


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
        lead: int = 0,
        kept: int = 0,
        allocate: Allocate = IN_MEMORY,
        sampler: Callable[[Windows], Sampler] = Uniform,
        initial_lanes: int | None = None,
    ):
        self.capacity, self.chunk, self.length, self.lead = capacity, chunk, burn_in + length, lead
        self.burn_in, self.kept = burn_in, kept
        self.rng = rng
        self._allocate, self._make_sampler = allocate, sampler
        self._begin(lanes, initial_lanes or lanes)

    def _begin(self, lanes: int, initial_lanes: int) -> None:
        """Start with empty lanes."""
        stride = self.chunk if self.kept else 1
        ring = Ring(self.capacity // initial_lanes, lanes, self.chunk, self._allocate)
        needed = -(-(self.length - self.lead) // stride) * stride + self.lead + 1
        if ring.rows < needed:
            raise ValueError(
                f"capacity: {self.capacity} rows over {initial_lanes} lanes hold no window of {self.length} rows; "
                f"at least {-(-needed // self.chunk) * self.chunk * initial_lanes} are needed"
            )
        self.ring, self.initial_lanes = ring, initial_lanes
        self.windows = Windows(ring, self.length, self.burn_in, self.lead, stride)
        self.sampler = self._make_sampler(self.windows)

    @property
    def rows(self) -> int:
        """Rows stored, over all lanes."""
        return int(self.ring.filled.sum())

    def grow(self, lanes: int) -> None:
        """Add lanes, up to `lanes` lanes. Raises ValueError if the capacity then holds no window."""
        if not self.rows:
            self._begin(lanes, lanes)
            return
        self.ring.grow(lanes)
        self.sampler.grow()

    def add(self, rollout: Rollout) -> None:
        """Store a collected rollout."""
        self.ring.write(replace(rollout, memory=rollout.memory[:, : self.kept]))
        self.sampler.follow()

    def sample(self, batch: int) -> Rollout | None:
        """`batch` windows, each with its weight in the loss, or None while there is no whole window yet."""
        drawn = self.sampler.draw(self.rng, batch)
        if drawn is None:
            return None
        windows = self.windows
        rollout = self.ring.read(drawn.lane, windows.row(drawn.number), windows.length, windows.lead)
        return replace(rollout, weight=drawn.weight, burn_in=self.burn_in)

    def prioritize(self, index: np.ndarray, errors: Errors) -> None:
        """Say what was learned of the windows of `index` [B]: `errors` gives [2, B], the largest and the mean of each.

        They are asked for only where they matter. Fresh rollouts (-1) and what is overwritten by now is passed over.
        """
        self.sampler.prioritize(index, errors)

    def state(self) -> Arrays:
        """Everything stored and every priority, as named arrays."""
        return {**self.ring.state(), **{SAMPLER + name: value for name, value in self.sampler.state().items()}}

    def restore(self, state: Arrays) -> None:
        """Take over what `state` gave. Raises ValueError where it was another size of replay."""
        of_sampler = {name: value for name, value in state.items() if name.startswith(SAMPLER)}
        self.ring.restore({name: value for name, value in state.items() if name not in of_sampler})
        self.sampler.restore({name.removeprefix(SAMPLER): value for name, value in of_sampler.items()})
