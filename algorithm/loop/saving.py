"""Saving while a run goes on: a full disk costs a checkpoint, not the run."""

from __future__ import annotations

from collections.abc import Callable

from algorithm.loop.actor import Actor
from algorithm.loop.checkpoint import CheckpointError, Checkpoints
from algorithm.loop.monitor import Counters, Monitor
from algorithm.loop.parts import Parts


class Saving:
    """Saves a run whenever it is called; what cannot be written is told, and tried again at the next call."""

    def __init__(self, checkpoints: Checkpoints, parts: Parts, say: Callable[[str], None]):
        self.checkpoints, self.parts, self.say = checkpoints, parts, say
        self.failure: str | None = None  # of the last call

    def follow(self, actor: Actor, monitor: Monitor) -> None:
        """Whose state is saved beside that of the teams."""
        self.actor, self.monitor = actor, monitor

    def __call__(self, counters: Counters) -> None:
        """Save this moment, if there is anything to save."""
        if not counters.env_steps:
            return
        try:
            self.checkpoints.save(self.parts, counters, self.actor, self.monitor)
            self.failure = None
        except OSError as error:
            self.failure = (
                f"the checkpoint of {counters.env_steps:,} env steps cannot be written to {self.checkpoints.folder}: "
                f"{error.strerror or error}; the ones before it are kept"
            )
            self.say(f"{self.failure}; the next save tries again")

    def require(self) -> None:
        """Raises CheckpointError where the last save, which was the run's final one, failed."""
        if self.failure:
            raise CheckpointError(self.failure)
