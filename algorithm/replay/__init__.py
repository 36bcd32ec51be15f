"""Experience kept: a ring of rows per lane, and which windows of it are drawn."""

from algorithm.replay.replay import Replay
from algorithm.replay.size import Size, size_of
from algorithm.replay.storage import IN_MEMORY, in_files

__all__ = ["IN_MEMORY", "Replay", "Size", "in_files", "size_of"]
