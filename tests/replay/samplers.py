"""Replays of all shapes with each sampler, and the expected starts by brute force."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from algorithm.replay import LazyPrioritizedSampler, PrioritizedSampler, PriorityFunction, Replay, UniformSampler
from tests.doubles import EncodedLanes, make_encoded_sequences

PRIORITY_FUNCTION = PriorityFunction(max_error_weight=0.9, td_error_min=0.01, td_error_max=100.0)
PRIORITIZED = partial(
    PrioritizedSampler, priority_function=PRIORITY_FUNCTION, alpha=0.6, beta=0.4, beta_increment_per_sampling=0.0
)
LAZY = partial(LazyPrioritizedSampler, priority_function=PRIORITY_FUNCTION, uniform_fraction=0.1)
SAMPLERS = {"prioritized": PRIORITIZED, "lazy": LAZY}
SHAPES = [
    {"capacity": 60, "chunk": 5, "length": 4},
    {"capacity": 60, "chunk": 5, "length": 5},
    {"capacity": 63, "chunk": 3, "length": 8},  # sequences over several columns
    {"capacity": 30, "chunk": 5, "length": 9},  # the longest sequence that ten rows hold
    {"capacity": 30, "chunk": 10, "length": 4},  # a ring of a single column
    {"capacity": 47, "chunk": 1, "length": 6},
    {"capacity": 60, "chunk": 5, "length": 3, "burn_in": 2},
    {"capacity": 60, "chunk": 5, "length": 4, "stored_state_size": 2},
    {"capacity": 60, "chunk": 5, "length": 7, "stored_state_size": 2},
    {"capacity": 75, "chunk": 5, "length": 5, "burn_in": 5, "stored_state_size": 2},
    {"capacity": 60, "chunk": 5, "length": 4, "burn_in": 3, "warmup_rows": 3},
    {"capacity": 60, "chunk": 5, "length": 4, "burn_in": 3, "warmup_rows": 3, "stored_state_size": 2},
    {"capacity": 75, "chunk": 5, "length": 5, "burn_in": 7, "warmup_rows": 2, "stored_state_size": 2},
    # Warmup over more than a column.
    {"capacity": 90, "chunk": 3, "length": 5, "burn_in": 7, "warmup_rows": 7, "stored_state_size": 2},
]
each_shape = pytest.mark.parametrize(
    "shape", SHAPES, ids=lambda shape: " ".join(f"{key}={value}" for key, value in shape.items())
)
each_sampler = pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS)
every_sampler = pytest.mark.parametrize("sampler", [UniformSampler, *SAMPLERS.values()], ids=["uniform", *SAMPLERS])


def replay_of(sampler=UniformSampler, capacity=60, lanes=3, chunk=5, length=4, seed=0, **kwargs) -> Replay:
    sizes = {"capacity": capacity, "lanes": lanes, "chunk": chunk, "length": length}
    return Replay(**sizes, rng=np.random.default_rng(seed), sampler=sampler, **kwargs)


def replay_of_valid_rows(sampler, capacity: int, chunk: int, lanes: int = 1) -> Replay:
    """Return a replay with a rollout of `chunk` valid rows in each lane, and with sequences of one row."""
    replay = replay_of(sampler, capacity, lanes, chunk, length=1)
    rollout = EncodedLanes(lanes, chunk).rollout(*range(lanes))
    rollout.first[:] = False
    replay.add(rollout)
    return replay


def equal_errors(*priorities: float):
    """Return errors whose largest and mean value are these priorities."""
    return lambda: np.array([priorities, priorities], np.float32)


def never():
    raise AssertionError("these errors must not be computed")


def is_valid(lane: int, time: int) -> bool:
    """Return whether a row of encoded lanes is valid."""
    return bool(make_encoded_sequences(np.array([lane]), np.array([time]), 1).valid[0, 0])


def learnable_starts(replay: Replay, lanes: EncodedLanes) -> set[tuple[int, int]]:
    """Return (lane, time) of every start of a complete sequence with a valid row, one by one."""
    sequences = replay.sequences
    n_rows = min(sequences.stride, sequences.length - sequences.burn_in)
    return {
        (lane, time)
        for lane, time in lanes.list_starts(replay.ring.rows, sequences.length, sequences.stride, sequences.warmup_rows)
        if any(is_valid(lane, time + sequences.burn_in + row) for row in range(n_rows))
    }
