"""Copies of checkpoints between runs of the same networks, also with other weights, and between machines."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch

from algorithm.checkpointing.checkpoint import LEARNER, WEIGHTS, Checkpoint
from algorithm.checkpointing.manifest import CheckpointError, Manifest
from algorithm.checkpointing.store import CheckpointStore
from algorithm.checkpointing.writer import write_tensors
from algorithm.networks.flat_parameters import State


def copy_checkpoint(
    source: Checkpoint, store: CheckpointStore, weights: Mapping[str, State] | None = None
) -> Checkpoint:
    """Copy a checkpoint into a store and return the copy, which is then the newest of the store.

    Checkpoints of the store with as many env steps or more are removed, when the copy is complete.

    Args:
        source: the checkpoint, of this store or of another run.
        store: the store.
        weights: other weights by role; the moments of the optimizers are then 0. None: those of the source.

    Raises:
        CheckpointError: the source is damaged.
        OSError: the copy cannot be written.
    """
    source.check()
    changed = _change_files(source, weights or {})
    env_steps = source.counters.env_steps
    with store.create(env_steps) as manifest:
        for name in Manifest.read(source.folder).digests:
            if name in changed:
                write_tensors(manifest, name, changed[name])
            else:
                with (source.folder / name).open("rb") as original, manifest.open_file(name) as copy:
                    shutil.copyfileobj(original, copy, 2**22)
    return Checkpoint(store.get_folder(env_steps))


def _change_files(source: Checkpoint, weights: Mapping[str, State]) -> dict[str, Any]:
    """Return the new content of the files that other weights change, by their names in the checkpoint."""
    changed: dict[str, Any] = {}
    for role, state in weights.items():
        learner = source.learner_state(role)
        moments = {name: torch.zeros_like(value) for name, value in learner.items() if name.startswith("moments/")}
        folder = quote(role, safe="")
        changed |= {f"{folder}/{WEIGHTS}": state, f"{folder}/{LEARNER}": {**learner, **moments}}
    return changed


@dataclass(frozen=True, kw_only=True)
class PackedCheckpoint:
    """A checkpoint as a message for another machine. Nothing in it is executed.

    Attributes:
        env_steps: the env steps of the run.
        digests: {path of a file: its digest}, as in the manifest.
        files: {path of a file: its content, an array of bytes}.
    """

    env_steps: int
    digests: Mapping[str, str]
    files: Mapping[str, np.ndarray]


def pack_checkpoint(checkpoint: Checkpoint) -> PackedCheckpoint:
    """Return a checkpoint as a message.

    Raises:
        CheckpointError: its manifest is missing or damaged.
        OSError: a file cannot be read.
    """
    digests = Manifest.read(checkpoint.folder).digests
    return PackedCheckpoint(
        env_steps=int(checkpoint.folder.name),
        digests=digests,
        files={name: np.fromfile(checkpoint.folder / name, np.uint8) for name in digests},
    )


def unpack_checkpoint(packed: PackedCheckpoint, store: CheckpointStore) -> Checkpoint:
    """Write a checkpoint from a message into a store, of which it is then the newest, and return it.

    Raises:
        CheckpointError: the message is damaged; the checkpoints of the store are unchanged.
        OSError: the checkpoint cannot be written.
    """
    with store.create(packed.env_steps) as manifest:
        for name, digest in packed.digests.items():
            path = Path(name)
            if path.is_absolute() or ".." in path.parts or name not in packed.files:
                raise CheckpointError(f"checkpoint {packed.env_steps} has no usable file {name!r}")
            with manifest.open_file(name) as file:
                file.write(packed.files[name].data)
            if manifest.digests[name] != digest:
                raise CheckpointError(f"checkpoint {packed.env_steps}: {name} was damaged on its way to this machine")
    return Checkpoint(store.get_folder(packed.env_steps))
