"""The replay of an agent: it stores rollouts and samples sequences; its sampler; its size before it is allocated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from algorithm.replay.hindsight import GoalRelabeler, Hindsight
from algorithm.replay.lazy_prioritized import LazyPrioritizedSampler
from algorithm.replay.prioritized import PrioritizedSampler
from algorithm.replay.ring import IN_MEMORY, Allocator, Arrays, Ring
from algorithm.replay.sampler import Errors, PriorityFunction, PrioritySampler, Sampler, Sequences
from algorithm.replay.uniform import UniformSampler
from algorithm.rollout import Rollout
from algorithm.specs import Role

SAMPLER_PREFIX = "sampler/"  # before the names of the sampler's saved arrays
SAMPLERS: Mapping[str, type[Sampler]] = {
    "uniform": UniformSampler,
    "prioritized": PrioritizedSampler,
    "lazy": LazyPrioritizedSampler,
}


class Replay:
    """A store of the last rows of every lane, from which a sampler draws sequences of `burn_in + length` rows.

    No sequence crosses a break in a lane. Sequences start at any row, unless part of the agent's memory is stored: then
    they start `warmup_rows` before the first row of a column, where that part is stored.

    Args:
        capacity: Rows (transitions) over all initial lanes.
        lanes: Number of lanes.
        chunk: Rows of a column of a collected rollout.
        length: Rows of a sequence that are learned from.
        rng: Random generator of the sampler.
        burn_in: Rows before these that only update the agent's memory.
        warmup_rows: The first of the burn-in rows, which rebuild the part of the memory that is not stored.
        stored_state_size: Number of values of the agent's memory to store, the first ones.
        allocate: Allocates the arrays, in memory or in files.
        sampler: Returns the sampler of the given sequences.
        hindsight: What replacing goals needs; None: sequences keep their goals.
        initial_lanes: Lanes that share the capacity; None: all. Each further lane has as many rows as one of them.
            Lanes that are added to an empty replay become initial lanes.

    Raises:
        ValueError: The capacity is too small for a sequence.
    """

    def __init__(
        self,
        *,
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
        hindsight: Hindsight | None = None,
        initial_lanes: int | None = None,
    ):
        self.capacity, self.chunk, self.length, self.warmup_rows = capacity, chunk, burn_in + length, warmup_rows
        self.burn_in, self.stored_state_size = burn_in, stored_state_size
        self.rng = rng
        self._allocate, self._make_sampler, self._hindsight = allocate, sampler, hindsight
        self._start_empty(lanes, initial_lanes or lanes)

    def _start_empty(self, lanes: int, initial_lanes: int) -> None:
        """Create empty lanes and a new sampler."""
        stride = self.chunk if self.stored_state_size else 1
        ring = Ring(self.capacity // initial_lanes, lanes, self.chunk, self._allocate)
        needed = -(-(self.length - self.warmup_rows) // stride) * stride + self.warmup_rows + 1
        if ring.rows < needed:
            raise ValueError(
                f"capacity: {self.capacity} rows over {initial_lanes} lanes hold no sequence of {self.length} rows; "
                f"at least {-(-needed // self.chunk) * self.chunk * initial_lanes} are needed"
            )
        self.ring, self.initial_lanes = ring, initial_lanes
        self.sequences = Sequences(ring, self.length, self.burn_in, self.warmup_rows, stride)
        self.sampler = self._make_sampler(self.sequences)
        self.goals = GoalRelabeler(self._hindsight, ring) if self._hindsight else None

    @property
    def rows(self) -> int:
        """Number of stored rows over all lanes."""
        return int(self.ring.n_readable.sum())

    @property
    def fill(self) -> float:
        """Fraction of the rows that can be stored which are stored."""
        return self.rows / (self.ring.lanes * (self.ring.rows - 1))

    def compute_ages(self, index: np.ndarray) -> np.ndarray:
        """Return the ages of sequences: rows over all lanes that were stored since their first row after the burn-in.

        The lanes count as equally fast. `index` are the indices of sequences; -1 (a fresh rollout) is left out.
        """
        lane, row = self.ring.find_row(index[index >= 0])
        return (self.ring.head[lane] - row - self.burn_in) * self.ring.lanes

    def grow(self, lanes: int) -> None:
        """Add lanes, up to `lanes` lanes. Raises ValueError if the capacity is then too small for a sequence."""
        if not self.rows:
            self._start_empty(lanes, lanes)
            return
        self.ring.grow(lanes)
        self.sampler.grow()
        if self.goals:
            self.goals.grow()

    def add(self, rollout: Rollout) -> None:
        """Store a collected rollout."""
        if self.goals:
            self.goals.observe(rollout)
        self.ring.write(replace(rollout, memory=rollout.memory[:, : self.stored_state_size]))
        self.sampler.update_after_write()

    def sample(self, batch: int) -> Rollout | None:
        """Return `batch` sequences with their weights in the loss; None if there is no complete sequence yet."""
        sampled = self.sampler.sample(self.rng, batch)
        if sampled is None:
            return None
        sequences, row = self.sequences, self.sequences.first_row(sampled.number)
        rollout = self.ring.read(sampled.lane, row, sequences.length, sequences.warmup_rows)
        if self.goals:
            self.goals.relabel(rollout, sampled.lane, row, self.rng)
        rollout.weight, rollout.burn_in = sampled.weight, self.burn_in
        return rollout

    def prioritize(self, index: np.ndarray, errors: Errors) -> None:
        """Set the priorities of sequences after learning from them.

        Args:
            index: The index [B] of each sequence; -1 (a fresh rollout) and overwritten sequences are skipped.
            errors: Computes the largest and the mean TD error of each [2, B]; called only if priorities depend on it.
        """
        self.sampler.prioritize(index, errors)

    def state(self) -> Arrays:
        """Return all rows and priorities as named arrays."""
        return {**self.ring.state(), **{SAMPLER_PREFIX + name: value for name, value in self.sampler.state().items()}}

    def restore(self, state: Arrays) -> None:
        """Restore the result of `state`. Raises ValueError if that replay had other sizes."""
        sampler_state = {name: value for name, value in state.items() if name.startswith(SAMPLER_PREFIX)}
        self.ring.restore({name: value for name, value in state.items() if name not in sampler_state})
        if self.goals:
            self.goals.restore()
        self.sampler.restore({name.removeprefix(SAMPLER_PREFIX): value for name, value in sampler_state.items()})


def make_sampler(settings: Any) -> Callable[[Sequences], Sampler]:
    """Return the sampler of the section `replay_config`, as a function of the sequences that it draws from."""
    kind = SAMPLERS[settings.sampler]
    if not issubclass(kind, PrioritySampler):
        return kind
    return partial(
        kind,
        priority_function=PriorityFunction(settings.max_error_weight, settings.td_error_min, settings.td_error_max),
        uses_recorded_errors=settings.initial_priorities is not None,
        **{name: getattr(settings, name) for name in kind.SETTINGS},
    )


@dataclass(frozen=True)
class ReplaySize:
    """The size of a replay: rows over all lanes, and bytes once all rows are written."""

    rows: int
    bytes: int


def compute_replay_size(
    capacity: int,
    role: Role,
    chunk: int,
    state_size: int,
    statistics_size: int,
    bytes_per_start: float = 0.0,
    initial_lanes: int | None = None,
    n_records: int = 0,
) -> ReplaySize:
    """Return the size of a replay, without allocating it.

    Args:
        capacity: Rows over all initial lanes.
        role: The role, with its number of lanes.
        chunk: Rows of a column.
        state_size: Number of stored values of the agent's memory.
        statistics_size: Number of statistics of the policy's distribution.
        bytes_per_start: `BYTES_PER_START` of the sampler.
        initial_lanes: Lanes that share the capacity; None: all.
        n_records: Number of values of a row that auxiliaries, or initial priorities, store.
    """
    columns = capacity // (initial_lanes or role.lanes) // chunk * role.lanes
    obs = sum(prod(obs.shape) * np.dtype(obs.dtype).itemsize for obs in role.obs_specs.values())
    floats = role.action_spec.size + statistics_size + 1 + n_records  # raw action, behavior, reward, records: float32
    row = obs + 4 * floats + 2 + 8  # first and alive are bytes, unbroken_rows is int64
    column = 4 * state_size + 8  # memory, and the version, int64
    starts = columns * (1 if state_size else chunk)
    return ReplaySize(columns * chunk, columns * (chunk * row + column) + round(starts * bytes_per_start))
