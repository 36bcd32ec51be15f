"""Experience kept: a ring of rows per lane, and which windows of it are drawn."""

from algorithm.replay.replay import Replay
from algorithm.replay.size import Size, size_of

__all__ = ["Replay", "Size", "size_of"]
