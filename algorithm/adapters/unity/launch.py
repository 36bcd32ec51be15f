"""How a scene is opened, and what comes back from one."""

from __future__ import annotations

from dataclasses import dataclass, field

from algorithm.adapters.unity.behavior import AgentSpecs
from algorithm.adapters.unity.lanes import Batch
from algorithm.adapters.unity.statistics import SceneStatistics


@dataclass(frozen=True)
class EngineSettings:
    """What Unity's engine is set to: pixels, frames per second (-1: as many as there can be), time as a multiple."""

    time_scale: float
    quality_level: int
    width: int
    height: int
    target_frame_rate: int
    capture_frame_rate: int


@dataclass(frozen=True)
class LaunchConfig:
    """A built player, or the editor where `path` is None; `timeout` is in seconds.

    `port` is that of the first player of a run, the next ones have the ports behind it; None is that of the editor, or
    any that is free for a player. `first_number` is the number of the first copy among the players of a run.
    """

    path: str | None
    port: int | None
    no_graphics: bool
    timeout: float
    additional_args: tuple[str, ...]
    log_folder: str | None
    engine: EngineSettings
    first_number: int = 0

    @property
    def name(self) -> str:
        """What messages call it."""
        return "the Unity editor" if self.path is None else self.path


@dataclass
class SceneTick:
    """What a scene shows at one tick: {behavior: (agents that await a decision, agents whose episode ended)}."""

    batches: dict[str, tuple[Batch, Batch]]
    agent_specs: dict[str, AgentSpecs] = field(default_factory=dict)  # of behaviors that were not there before
    statistics: SceneStatistics = field(default_factory=dict)


@dataclass(frozen=True)
class PlayerExited:
    """Why a scene is of no use any more; `stopped` where somebody ended it rather than something broke."""

    reason: str
    stopped: bool = False
