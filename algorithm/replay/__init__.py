"""Experience kept: a ring of rows per lane, and which windows of it are drawn."""

from algorithm.replay.lazy_prioritized import Lazy
from algorithm.replay.memory_size import Size, size_of
from algorithm.replay.prioritized import Prioritized
from algorithm.replay.replay import Replay
from algorithm.replay.sampler import Rating, Sampler, Uniform
from algorithm.replay.sequences import Windows
from algorithm.replay.storage import IN_MEMORY, in_files

__all__ = [
    "IN_MEMORY",
    "Lazy",
    "Prioritized",
    "Rating",
    "Replay",
    "Sampler",
    "Size",
    "Uniform",
    "Windows",
    "in_files",
    "size_of",
]
