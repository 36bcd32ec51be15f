"""The lessons of a scene, kept with a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from algorithm.adapters.unity.curriculum import Scene
from algorithm.checkpointing.checkpoint import Stateful


class Taught:
    """What a checkpoint keeps beside teams and actor: how far the monitor is, and the lessons of the scene."""

    def __init__(self, monitor: Stateful, scene: Scene):
        self.monitor, self.scene = monitor, scene

    def state(self) -> dict[str, Any]:
        """Of both, as values that JSON holds."""
        lessons = {"lessons": self.scene.state()} if self.scene.curricula else {}
        return {**self.monitor.state(), **lessons}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave."""
        self.monitor.restore(state)
        self.scene.restore(state.get("lessons", {}))
