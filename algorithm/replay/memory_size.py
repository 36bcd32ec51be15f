"""How much memory a replay will take, before any of it is allocated."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from algorithm.specs import Role


@dataclass(frozen=True)
class ReplaySize:
    """Rows over all lanes, and the bytes that they take once all are written."""

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
) -> ReplaySize:
    """Return the size of a replay of `capacity` rows, in columns of `chunk`, with `memory` numbers per lane.

    `statistics` are the numbers that determine its policy; `per_start` the bytes that a sampler keeps for each place at
    which a window may start. The `initial_lanes` (None: all lanes) share the capacity.
    """
    columns = capacity // (initial_lanes or role.lanes) // chunk * role.lanes
    obs = sum(prod(obs.shape) * np.dtype(obs.dtype).itemsize for obs in role.obs_specs.values())
    numbers = role.action_spec.size + statistics_size + 1  # sample, behavior and reward: float32
    row = obs + 4 * numbers + 2 + 8  # first and alive are bytes, the ring's own count is int64
    column = 4 * state_size + 8  # and the version, int64
    starts = columns * (1 if state_size else chunk)
    return ReplaySize(columns * chunk, columns * (chunk * row + column) + round(starts * bytes_per_start))
