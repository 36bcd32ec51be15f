"""A replay of encoded lanes for each sampler, and what brute force says of it."""

from __future__ import annotations

from functools import partial

import numpy as np

from algorithm.replay import LazyPrioritizedSampler, PrioritizedSampler, PriorityFunction, Replay
from tests.doubles import EncodedLanes, window_of

RATING = PriorityFunction(max_error_weight=0.9, td_error_min=0.01, td_error_max=100.0)
PRIORITIZED = partial(
    PrioritizedSampler, priority_function=RATING, alpha=0.6, beta=0.4, beta_increment_per_sampling=0.0
)
LAZY = partial(LazyPrioritizedSampler, priority_function=RATING, uniform_fraction=0.1)
SAMPLERS = {"prioritized": PRIORITIZED, "lazy": LAZY}


def replay_of(sampler, capacity=60, lanes=3, chunk=5, length=4, seed=0, **kwargs) -> Replay:
    return Replay(capacity, lanes, chunk, length, np.random.default_rng(seed), sampler=sampler, **kwargs)


def alike(*priorities: float):
    """Errors whose largest and whose mean are these, so that this is the priority."""
    return lambda: np.array([priorities, priorities], np.float32)


def never():
    raise AssertionError("nobody may ask for these errors")


def learned(lane: int, time: int) -> bool:
    """Whether a row of encoded lanes may be learned from."""
    return bool(window_of(np.array([lane]), np.array([time]), 1).valid[0, 0])


def worthwhile(replay: Replay, lanes: EncodedLanes) -> set[tuple[int, int]]:
    """(lane, time) at which a window may start that brings something to learn: listed one by one."""
    windows = replay.sequences
    own = min(windows.stride, windows.length - windows.burn_in)
    return {
        (lane, time)
        for lane, time in lanes.legal(replay.ring.rows, windows.length, windows.stride, windows.warmup_rows)
        if any(learned(lane, time + windows.burn_in + row) for row in range(own))
    }
