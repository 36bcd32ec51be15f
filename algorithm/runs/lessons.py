"""The lessons of a scene, kept with a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from algorithm.adapters.unity.curriculum import SceneParameters
from algorithm.checkpointing.checkpoint import Stateful


class MonitorWithCurriculum:
    """What a checkpoint keeps beside teams and actor: how far the monitor is, and the lessons of the scene."""

    def __init__(self, monitor: Stateful, scene_parameters: SceneParameters):
        self.monitor, self.scene_parameters = monitor, scene_parameters

    def state(self) -> dict[str, Any]:
        """Of both, as values that JSON holds."""
        lessons = {"lessons": self.scene_parameters.state()} if self.scene_parameters.curricula else {}
        return {**self.monitor.state(), **lessons}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave."""
        self.monitor.restore(state)
        self.scene_parameters.restore(state.get("lessons", {}))
