"""How a scene is opened, and what comes back from one."""

from __future__ import annotations

from dataclasses import dataclass, field

from algorithm.adapters.unity.behavior import Offer
from algorithm.adapters.unity.lanes import Batch
from algorithm.adapters.unity.statistics import Told


@dataclass(frozen=True)
class Engine:
    """What Unity's engine is set to: pixels, frames per second (-1: as many as there can be), time as a multiple."""

    time_scale: float
    quality_level: int
    width: int
    height: int
    target_frame_rate: int
    capture_frame_rate: int


@dataclass(frozen=True)
class Launch:
    """A built player, or the editor where `path` is None; `timeout` is in seconds.

    `port` is that of the first player of a run, the next ones have the ports behind it; None is that of the editor, or
    any that is free for a player. `first` is the number of the first copy among the players of a run.
    """

    path: str | None
    port: int | None
    no_graphics: bool
    timeout: float
    additional_args: tuple[str, ...]
    log_folder: str | None
    engine: Engine
    first: int = 0

    @property
    def name(self) -> str:
        """What messages call it."""
        return "the Unity editor" if self.path is None else self.path


@dataclass
class Tick:
    """What a scene shows at one tick: {behavior: (agents that await a decision, agents whose episode ended)}."""

    batches: dict[str, tuple[Batch, Batch]]
    offers: dict[str, Offer] = field(default_factory=dict)  # of behaviors that were not there before
    statistics: Told = field(default_factory=dict)


@dataclass(frozen=True)
class Gone:
    """Why a scene is of no use any more; `stopped` where somebody ended it rather than something broke."""

    why: str
    stopped: bool = False
