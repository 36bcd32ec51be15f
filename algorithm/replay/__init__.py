"""Experience kept: a ring of rows per lane, and which windows of it are drawn."""

from algorithm.replay.replay import Replay

__all__ = ["Replay"]
