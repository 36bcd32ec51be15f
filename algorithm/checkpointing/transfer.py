"""Copies of checkpoints from one run to another run of the same networks."""

from __future__ import annotations

import shutil

from algorithm.checkpointing.checkpoint import Checkpoint
from algorithm.checkpointing.manifest import Manifest
from algorithm.checkpointing.store import CheckpointStore


def copy_checkpoint(source: Checkpoint, store: CheckpointStore) -> Checkpoint:
    """Copy a checkpoint of another run into a store and return the copy, which is then the newest.

    Checkpoints of the store with as many env steps or more are removed. After an interruption the copy is complete or
    missing.

    Raises:
        CheckpointError: the source is damaged.
        OSError: the copy cannot be written.
    """
    source.check()
    env_steps = source.counters.env_steps
    store.remove_from(env_steps)
    with store.create(env_steps) as manifest:
        for name in Manifest.read(source.folder).digests:
            with (source.folder / name).open("rb") as original, manifest.open_file(name) as copy:
                shutil.copyfileobj(original, copy, 2**22)
    return Checkpoint(store.get_folder(env_steps))
