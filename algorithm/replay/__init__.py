"""Experience kept: a ring of rows per lane, and which windows of it are drawn."""

from algorithm.replay.lazy_prioritized import LazyPrioritizedSampler
from algorithm.replay.memory_size import ReplaySize, compute_replay_size
from algorithm.replay.prioritized import PrioritizedSampler
from algorithm.replay.replay import Replay
from algorithm.replay.sampler import PriorityFunction, Sampler, UniformSampler
from algorithm.replay.sequences import Sequences
from algorithm.replay.storage import IN_MEMORY, make_file_allocator

__all__ = [
    "IN_MEMORY",
    "LazyPrioritizedSampler",
    "PrioritizedSampler",
    "PriorityFunction",
    "Replay",
    "ReplaySize",
    "Sampler",
    "Sequences",
    "UniformSampler",
    "compute_replay_size",
    "make_file_allocator",
]
