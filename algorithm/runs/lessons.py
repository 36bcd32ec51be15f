"""The lessons of a scene, kept with a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from algorithm.adapters.curriculum import EnvironmentParameters
from algorithm.checkpointing.checkpoint import Stateful


class MonitorWithCurriculum:
    """What a checkpoint keeps beside teams and actor: how far the monitor is, and the lessons of the scene."""

    def __init__(self, monitor: Stateful, parameters: EnvironmentParameters):
        self.monitor, self.parameters = monitor, parameters

    def state(self) -> dict[str, Any]:
        """Of both, as values that JSON holds."""
        lessons = {"lessons": self.parameters.state()} if self.parameters.curricula else {}
        return {**self.monitor.state(), **lessons}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave."""
        self.monitor.restore(state)
        self.parameters.restore(state.get("lessons", {}))
