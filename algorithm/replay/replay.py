"""The replay: add rollouts, sample windows, prioritize."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from algorithm.replay.ring import Arrays, Ring
from algorithm.replay.sampler import Uniform
from algorithm.replay.storage import IN_MEMORY, Allocate
from algorithm.rollout import Rollout

SAMPLER = "sampler/"  # before the names of the sampler's arrays
REDRAWS = 8  # of windows across a break, before all whole windows are listed


class Replay:
    """The last `capacity` rows over all lanes, and uniform windows of `burn_in + length` rows from them.

    `chunk` is the number of rows of a collected column. `kept` is how many numbers of an agent's memory are kept, at
    the first row of a column; the windows of such an agent start `lead` rows before one, and others at any row. No
    window crosses a break in a lane.

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
    ):
        self.ring = Ring(capacity // lanes, lanes, chunk, allocate)
        self.window = burn_in + length
        self.burn_in, self.lead, self.kept = burn_in, lead, kept
        self.stride = chunk if kept else 1
        self.rng = rng
        self.sampler = Uniform()
        needed = -(-(self.window - lead) // self.stride) * self.stride + lead + 1
        if self.ring.rows < needed:
            raise ValueError(
                f"capacity: {capacity} rows over {lanes} lanes hold no window of {self.window} rows; "
                f"at least {-(-needed // chunk) * chunk * lanes} are needed"
            )

    @property
    def rows(self) -> int:
        """Rows stored, over all lanes."""
        return int(self.ring.filled.sum())

    def add(self, rollout: Rollout) -> None:
        """Store a collected rollout."""
        self.ring.write(replace(rollout, memory=rollout.memory[:, : self.kept]))

    def sample(self, batch: int) -> Rollout | None:
        """`batch` windows drawn independently, or None while there is no whole window yet."""
        oldest, starts = self._starts()
        if not starts.any():
            return None
        lane, start = self._draw(oldest, starts, batch)
        for _ in range(REDRAWS):
            broken = np.flatnonzero(~self.ring.whole(lane, start, self.window))
            if not len(broken):
                return self._read(lane, start)
            lane[broken], start[broken] = self._draw(oldest, starts, len(broken))
        lane, start = self._whole_windows(oldest, starts)
        if not len(lane):
            return None
        chosen = self.rng.integers(len(lane), size=batch)
        return self._read(lane[chosen], start[chosen])

    def prioritize(self, index: np.ndarray, priority: Callable[[], Any]) -> None:
        """Say how much the windows that began at `index` are worth drawing again; `priority` gives it when asked."""
        self.sampler.prioritize(index, priority)

    def state(self) -> Arrays:
        """Everything stored and every priority, as named arrays."""
        return {**self.ring.state(), **{SAMPLER + name: value for name, value in self.sampler.state().items()}}

    def restore(self, state: Arrays) -> None:
        """Take over what `state` gave. Raises ValueError where it was another size of replay."""
        of_sampler = {name: value for name, value in state.items() if name.startswith(SAMPLER)}
        self.ring.restore({name: value for name, value in state.items() if name not in of_sampler})
        self.sampler.restore({name.removeprefix(SAMPLER): value for name, value in of_sampler.items()})

    def _starts(self) -> tuple[np.ndarray, np.ndarray]:
        """[lanes] in strides: the oldest row before which a window may begin, and how many such rows there are."""
        head = self.ring.head + self.lead
        oldest = -((self.ring.filled - head) // self.stride)
        newest = (head - self.window) // self.stride
        return oldest, np.maximum(newest - oldest + 1, 0)

    def _draw(self, oldest: np.ndarray, starts: np.ndarray, batch: int) -> tuple[np.ndarray, np.ndarray]:
        lane, number = self.sampler.draw(self.rng, starts, batch)
        return lane, (oldest[lane] + number) * self.stride - self.lead

    def _whole_windows(self, oldest: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        lane = np.repeat(np.arange(len(starts)), starts)
        number = np.arange(len(lane)) - np.repeat(starts.cumsum() - starts, starts)
        start = (oldest[lane] + number) * self.stride - self.lead
        whole = self.ring.whole(lane, start, self.window)
        return lane[whole], start[whole]

    def _read(self, lane: np.ndarray, start: np.ndarray) -> Rollout:
        rollout = self.ring.read(lane, start, self.window, self.lead)
        return replace(rollout, burn_in=self.burn_in) if self.burn_in else rollout
