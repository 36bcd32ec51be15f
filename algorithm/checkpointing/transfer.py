"""Copies of checkpoints between runs of the same networks, also with other weights; files between machines."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import numpy as np
import torch

from algorithm.atomic_io import resolve_inside
from algorithm.checkpointing.checkpoint import LEARNER, WEIGHTS, Checkpoint
from algorithm.checkpointing.manifest import CheckpointError, Manifest, compute_digest
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


@dataclass(frozen=True)
class PackedFile:
    """A file as a message for another machine: an array of bytes, which Ray sends without a copy, and its digest."""

    content: np.ndarray
    digest: str


PackedFolder = dict[str, PackedFile]  # by path in the folder; nothing in it is executed


def pack_folder(folder: Path, names: Iterable[str], digests: Mapping[str, str] = MappingProxyType({})) -> PackedFolder:
    """Return files of a folder as a message.

    Args:
        folder: the folder.
        names: the paths of the files in it.
        digests: digests of a manifest by path; those of other files are computed.

    Raises:
        OSError: a file cannot be read.
    """
    packed = {}
    for name in names:
        content = np.fromfile(folder / name, np.uint8)
        packed[name] = PackedFile(content, digests.get(name) or compute_digest(content))
    return packed


def unpack_folder(packed: PackedFolder, manifest: Manifest) -> None:
    """Write the files of a message to the folder of a manifest, which receives their digests.

    Raises:
        CheckpointError: a file was damaged on its way.
        OSError: a file cannot be written.
        ValueError: a path is outside of the folder.
    """
    for name, packed_file in packed.items():
        resolve_inside(manifest.folder, Path(name))
        with manifest.open_file(name) as file:
            file.write(packed_file.content.data)
        if manifest.digests[name] != packed_file.digest:
            raise CheckpointError(f"{name} was damaged on its way to this machine")
