"""Experience replay: a ring buffer of rows per lane, and samplers that draw sequences from it."""

from algorithm.replay.demonstrations import DemonstrationReplay
from algorithm.replay.hindsight import ACHIEVED, DESIRED, Hindsight
from algorithm.replay.lazy_prioritized import LazyPrioritizedSampler
from algorithm.replay.prioritized import PrioritizedSampler
from algorithm.replay.replay import SAMPLERS, Replay, ReplaySize, compute_replay_size, make_sampler
from algorithm.replay.ring import IN_MEMORY, make_file_allocator
from algorithm.replay.sampler import PriorityFunction
from algorithm.replay.uniform import UniformSampler

__all__ = [
    "ACHIEVED",
    "DESIRED",
    "IN_MEMORY",
    "SAMPLERS",
    "DemonstrationReplay",
    "Hindsight",
    "LazyPrioritizedSampler",
    "PrioritizedSampler",
    "PriorityFunction",
    "Replay",
    "ReplaySize",
    "UniformSampler",
    "compute_replay_size",
    "make_file_allocator",
    "make_sampler",
]
