"""Saving while a run goes on: a full disk costs a checkpoint, not the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from algorithm.checkpointing.checkpoint import Checkpoint, CheckpointError, Stateful
from algorithm.checkpointing.store import Checkpoints
from algorithm.training.actor import Actor
from algorithm.training.components import Parts
from algorithm.training.history import Counters


class Saving:
    """Saves a run whenever it is called; what cannot be written is told, and tried again at the next call.

    `saved` hears of each checkpoint that was written.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        parts: Parts,
        say: Callable[[str], None],
        saved: Callable[[Checkpoint], None] = lambda checkpoint: None,
    ):
        self.checkpoints, self.parts, self.say, self.saved = checkpoints, parts, say, saved
        self.failure: str | None = None  # of the last call
        self._last: Path | None = None  # checkpoint that was written

    def follow(self, actor: Actor, monitor: Stateful) -> None:
        """Whose state is saved beside that of the teams."""
        self.actor, self.monitor = actor, monitor

    def __call__(self, counters: Counters) -> Checkpoint | None:
        """Save this moment, if there is anything to save; None where there is not, or it could not be written."""
        if not counters.env_steps:
            return None
        try:
            checkpoint = self.checkpoints.save(self.parts, counters, self.actor, self.monitor)
            self.failure = None
        except OSError as error:
            self.failure = (
                f"the checkpoint of {counters.env_steps:,} env steps cannot be written to {self.checkpoints.folder}: "
                f"{error.strerror or error}; the ones before it are kept"
            )
            self.say(f"{self.failure}; the next save tries again")
            return None
        if checkpoint.folder != self._last:  # a moment that is saved again, at the end, is that checkpoint
            self._last = checkpoint.folder
            self.saved(checkpoint)
        return checkpoint

    def require(self) -> None:
        """Raises CheckpointError where the last save, which was the run's final one, failed."""
        if self.failure:
            raise CheckpointError(self.failure)
