"""Writing of checkpoints during a run: a checkpoint that cannot be written does not end the run."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch

from algorithm.atomic_io import sync_folder
from algorithm.checkpointing.checkpoint import (
    ACTOR,
    LEARNER,
    METADATA,
    REPLAY,
    WEIGHTS,
    Checkpoint,
    CheckpointError,
    Manifest,
    Stateful,
    StatefulActor,
)
from algorithm.checkpointing.rng_state import get_process_state, list_generators
from algorithm.checkpointing.store import CheckpointStore
from algorithm.training.components import AgentComponents, TrainingComponents
from algorithm.training.progress import Counters


class CheckpointWriter:
    """A writer of the checkpoints of a run.

    Args:
        store: the checkpoints of the run.
        training: the components of the run, whose weights, learners and replays are saved.
        actor: the actor of the run.
        states: {name: part of the run}, whose states are saved as JSON.
        log: receives a line if a checkpoint cannot be written.
        on_checkpoint: receives each checkpoint that was written.
    """

    def __init__(
        self,
        store: CheckpointStore,
        training: TrainingComponents,
        actor: StatefulActor,
        states: Mapping[str, Stateful],
        log: Callable[[str], None],
        on_checkpoint: Callable[[Checkpoint], object] = lambda checkpoint: None,
    ):
        self.store, self.training, self.actor, self.states = store, training, actor, states
        self.log, self.on_checkpoint = log, on_checkpoint
        self.failure: str | None = None  # of the last call
        self._last_folder: Path | None = None  # of the last checkpoint that was written

    def __call__(self, counters: Counters) -> Checkpoint | None:
        """Write a checkpoint, unless there was no env step yet. A failure is logged, and the next call tries again.

        Returns:
            The checkpoint; None if none was written.
        """
        if not counters.env_steps:
            return None
        try:
            checkpoint = self.write(counters)
            self.failure = None
        except OSError as error:
            self.failure = (
                f"the checkpoint of {counters.env_steps:,} env steps cannot be written to {self.store.folder}: "
                f"{error.strerror or error}; earlier checkpoints are kept"
            )
            self.log(f"{self.failure}; the next save tries again")
            return None
        if checkpoint.folder != self._last_folder:  # the final checkpoint may be the last one that was written
            self._last_folder = checkpoint.folder
            self.on_checkpoint(checkpoint)
        return checkpoint

    def raise_if_failed(self) -> None:
        """Raise CheckpointError if the last call failed; at the end of a run, it wrote the final checkpoint."""
        if self.failure:
            raise CheckpointError(self.failure)

    def write(self, counters: Counters) -> Checkpoint:
        """Write a checkpoint, or return the checkpoint of these env steps if it exists.

        Raises:
            OSError: it cannot be written; the other checkpoints are unchanged.
        """
        if existing := self.store.find(str(counters.env_steps)):
            return existing
        with self.store.create(counters.env_steps) as manifest:
            for role, components in self.training.by_role.items():
                _write_components(manifest, quote(role, safe=""), components)
            state = self.actor.state()
            if state is not None:
                with manifest.open_file(ACTOR) as file:
                    np.savez(file, **state)  # type: ignore[arg-type]  # of `allow_pickle`
            with manifest.open_file(METADATA) as file:
                file.write(json.dumps(self._collect_metadata(counters)).encode())
        return Checkpoint(self.store.get_folder(counters.env_steps))

    def _collect_metadata(self, counters: Counters) -> dict[str, Any]:
        by_role = self.training.by_role
        return {
            "counters": asdict(counters),
            "states": {name: part.state() for name, part in self.states.items()},
            "roles": {role: _describe_components(components) for role, components in by_role.items()},
            "generators": get_process_state(),
        }


def _write_components(manifest: Manifest, role_folder: str, components: AgentComponents) -> None:
    """Write the weights, learner and replay of a role."""
    (manifest.folder / role_folder).mkdir()
    _write_tensors(manifest, f"{role_folder}/{WEIGHTS}", components.learner.parameters.state())
    _write_tensors(manifest, f"{role_folder}/{LEARNER}", components.learner.state())
    if replay := components.scheduler.replay:
        with manifest.open_file(f"{role_folder}/{REPLAY}") as file:
            np.savez(file, **replay.state())  # type: ignore[arg-type]
    sync_folder(manifest.folder / role_folder)


def _write_tensors(manifest: Manifest, name: str, state: Mapping[str, Any]) -> None:
    memory = io.BytesIO()  # since torch raises no OSError if the disk is full
    torch.save(state, memory)
    with manifest.open_file(name) as file:
        file.write(memory.getbuffer())


def _describe_components(components: AgentComponents) -> dict[str, Any]:
    generators = {name: rng.bit_generator.state for name, rng in list_generators(components).items()}
    lanes = {"lanes": components.role.lanes, "initial_lanes": components.scheduler.initial_lanes}
    return {"generators": generators, "scheduler": components.scheduler.state(), **lanes}
