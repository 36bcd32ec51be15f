"""Writing of checkpoints: during a run, which a checkpoint that cannot be written does not end, and as copies."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from torch import Tensor

from algorithm.checkpointing.checkpoint import (
    ACTOR,
    LEARNER,
    METADATA,
    REPLAY,
    WEIGHTS,
    Checkpoint,
    Stateful,
    StatefulActor,
)
from algorithm.checkpointing.manifest import CheckpointError, Manifest
from algorithm.checkpointing.rng_state import get_process_state, list_generators
from algorithm.checkpointing.store import CheckpointStore
from algorithm.networks.flat_parameters import State
from algorithm.training.components import TrainingComponents
from algorithm.training.learner import Learner
from algorithm.training.progress import Counters


class CheckpointWriter:
    """A writer of the checkpoints of a run.

    Args:
        store: the checkpoints of the run.
        write_parts: writes the files of roles and environments by a manifest, and returns what counters.json has about
            them (`write_all`, if everything is in one process).
        states: {name: part of the run}, whose states are saved as JSON.
        log: receives a line if a checkpoint cannot be written.
        on_checkpoint: receives each checkpoint that was written.
    """

    def __init__(
        self,
        store: CheckpointStore,
        write_parts: Callable[[Manifest], Mapping[str, Any]],
        states: Mapping[str, Stateful],
        log: Callable[[str], None],
        on_checkpoint: Callable[[Checkpoint], object] = lambda checkpoint: None,
    ):
        self.store, self.write_parts, self.states = store, write_parts, states
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
            metadata = {
                "counters": asdict(counters),
                "states": {name: part.state() for name, part in self.states.items()},
                **self.write_parts(manifest),
            }
            with manifest.open_file(METADATA) as file:
                file.write(json.dumps(metadata).encode())
        return Checkpoint(self.store.get_folder(counters.env_steps))


def write_all(training: TrainingComponents, actor: StatefulActor, manifest: Manifest) -> dict[str, Any]:
    """Write the learners and the experience of a run in one process. Return what counters.json has about them."""
    for role, components in training.by_role.items():
        write_learner(manifest, role, components.learner)
    return write_experience(training, actor, manifest)


def write_learner(
    manifest: Manifest, role: str, learner: Learner, own_state: Mapping[str, Tensor] = MappingProxyType({})
) -> None:
    """Write the weights and the learner of a role, with another `own_state` of the learner if it is given."""
    _write_tensors(manifest, f"{quote(role, safe='')}/{WEIGHTS}", learner.parameters.state())
    write_learner_state(manifest, role, {**learner.state(), **own_state})


def write_learner_state(manifest: Manifest, role: str, state: Mapping[str, Tensor], prefix: str = "") -> None:
    """Write the state of a learner."""
    _write_tensors(manifest, f"{prefix}{quote(role, safe='')}/{LEARNER}", state)


def write_experience(
    training: TrainingComponents, actor: StatefulActor, manifest: Manifest, prefix: str = ""
) -> dict[str, Any]:
    """Write the replays of all roles and the state of the actor. Return what counters.json has about them.

    `prefix` is the folder of the files in the checkpoint, with a slash.
    """
    for role, components in training.by_role.items():
        if replay := components.scheduler.replay:
            _write_arrays(manifest, f"{prefix}{quote(role, safe='')}/{REPLAY}", replay.state())
    if (state := actor.state()) is not None:
        _write_arrays(manifest, f"{prefix}{ACTOR}", state)
    return describe_all(training)


def describe_all(training: TrainingComponents) -> dict[str, Any]:
    """Return what counters.json has about the roles and about the generators of this process."""
    roles = {}
    for role, components in training.by_role.items():
        scheduler, explorer = components.scheduler, components.explorer
        roles[role] = {
            "generators": {name: rng.bit_generator.state for name, rng in list_generators(components).items()},
            "scheduler": scheduler.state(),
            "explorer": explorer.state() if explorer else {},
            "lanes": components.role.lanes,
            "initial_lanes": scheduler.initial_lanes,
            **({"capacity": scheduler.replay.capacity} if scheduler.replay else {}),
        }
    return {"roles": roles, "generators": get_process_state()}


def _write_arrays(manifest: Manifest, name: str, arrays: Mapping[str, np.ndarray]) -> None:
    with manifest.open_file(name) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # of `allow_pickle`


def _write_tensors(manifest: Manifest, name: str, state: Mapping[str, Any]) -> None:
    """Write named tensors to a file of a checkpoint."""
    memory = io.BytesIO()  # since torch raises no OSError if the disk is full
    torch.save(state, memory)
    with manifest.open_file(name) as file:
        file.write(memory.getbuffer())


def copy_checkpoint(
    source: Checkpoint, store: CheckpointStore, weights: Mapping[str, State] | None = None
) -> Checkpoint:
    """Copy a checkpoint into a store and return the copy, which is then the newest of the store.

    Checkpoints of the store with as many env steps or more are removed, when the copy is complete.

    Args:
        source: the checkpoint, of this store or of another run of the same networks.
        store: the store.
        weights: other weights by role; the moments of the optimizers are then 0. None: those of the source.

    Raises:
        CheckpointError: the source is damaged.
        OSError: the copy cannot be written.
    """
    source.check()
    changed: dict[str, Any] = {}
    for role, state in (weights or {}).items():
        learner, folder = source.learner_state(role), quote(role, safe="")
        moments = {name: torch.zeros_like(value) for name, value in learner.items() if name.startswith("moments/")}
        changed |= {f"{folder}/{WEIGHTS}": state, f"{folder}/{LEARNER}": {**learner, **moments}}
    env_steps = source.counters.env_steps
    with store.create(env_steps) as manifest:
        for name in Manifest.read(source.folder).digests:
            if name in changed:
                _write_tensors(manifest, name, changed[name])
            else:
                with (source.folder / name).open("rb") as original, manifest.open_file(name) as copy:
                    shutil.copyfileobj(original, copy, 2**22)
    return Checkpoint(store.get_folder(env_steps))
