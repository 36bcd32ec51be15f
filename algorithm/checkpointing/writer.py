"""Saving while a run goes on: a full disk costs a checkpoint, not the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from algorithm.checkpointing.checkpoint import Checkpoint, CheckpointError, Stateful
from algorithm.checkpointing.store import CheckpointStore
from algorithm.training.actor import Actor
from algorithm.training.components import TrainingComponents
from algorithm.training.history import Counters


class CheckpointWriter:
    """Saves a run whenever it is called; what cannot be written is told, and tried again at the next call.

    `on_checkpoint` hears of each checkpoint that was written.
    """

    def __init__(
        self,
        checkpoints: CheckpointStore,
        training: TrainingComponents,
        log: Callable[[str], None],
        on_checkpoint: Callable[[Checkpoint], None] = lambda checkpoint: None,
    ):
        self.checkpoints, self.training, self.log, self.on_checkpoint = checkpoints, training, log, on_checkpoint
        self.failure: str | None = None  # of the last call
        self._last_folder: Path | None = None  # checkpoint that was written

    def bind(self, actor: Actor, monitor: Stateful) -> None:
        """Whose state is saved beside that of the teams."""
        self.actor, self.monitor = actor, monitor

    def __call__(self, counters: Counters) -> Checkpoint | None:
        """Save this moment, if there is anything to save; None where there is not, or it could not be written."""
        if not counters.env_steps:
            return None
        try:
            checkpoint = self.checkpoints.save(self.training, counters, self.actor, self.monitor)
            self.failure = None
        except OSError as error:
            self.failure = (
                f"the checkpoint of {counters.env_steps:,} env steps cannot be written to {self.checkpoints.folder}: "
                f"{error.strerror or error}; the ones before it are kept"
            )
            self.log(f"{self.failure}; the next save tries again")
            return None
        if checkpoint.folder != self._last_folder:  # a moment that is saved again, at the end, is that checkpoint
            self._last_folder = checkpoint.folder
            self.on_checkpoint(checkpoint)
        return checkpoint

    def raise_if_failed(self) -> None:
        """Raises CheckpointError where the last save, which was the run's final one, failed."""
        if self.failure:
            raise CheckpointError(self.failure)
