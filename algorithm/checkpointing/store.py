"""Runs on disk: whole or not at all."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch

from algorithm.checkpointing.atomic_io import resolve_inside, set_aside, sync_folder
from algorithm.checkpointing.best import BestCheckpoint
from algorithm.checkpointing.checkpoint import (
    ACTOR,
    LEARNER,
    METADATA,
    REPLAY,
    WEIGHTS,
    Checkpoint,
    Stateful,
)
from algorithm.checkpointing.manifest import CheckpointError, Manifest
from algorithm.checkpointing.rng_state import get_process_state, list_generators
from algorithm.training.actor import Actor
from algorithm.training.components import AgentComponents, TrainingComponents
from algorithm.training.history import Counters

SAVING = "saving"  # the folder of a checkpoint that is not complete yet
REMOVING = "removing"  # the folder of one that is not needed any more


class CheckpointStore:
    """The last `keep` checkpoints of a run, and the best one."""

    def __init__(self, folder: Path, keep: int):
        self.folder = folder
        self.keep = keep
        self.best = BestCheckpoint(folder)

    def __bool__(self) -> bool:
        """Whether there is any, whatever it is worth."""
        return bool(self._list_folders())

    def latest(self, log: Callable[[str], None], name: str | None = None) -> Checkpoint | None:
        """The newest checkpoint whose files (of this `name`) can be read, None where there is none at all.

        `log` is told of every newer one that cannot. Raises CheckpointError naming all where that is true of all.
        """
        errors = []
        for path in reversed(self._list_folders()):
            checkpoint = Checkpoint(path)
            try:
                checkpoint.check(name)
            except CheckpointError as error:
                errors.append(str(error))
                continue
            for error_text in errors:
                log(f"{error_text}: checkpoint {path.name} is used instead")
            return checkpoint
        if errors:
            raise CheckpointError(f"no checkpoint in {self.folder} can be read: {'; '.join(errors)}")
        return None

    def find(self, which: str) -> Checkpoint | None:
        """Return the checkpoint with this number of env steps, or in this folder; None if there is none.

        Raises ValueError for a folder elsewhere.
        """
        path = self.folder / (f"{int(which):012d}" if which.isdecimal() else Path(which).absolute())
        checkpoint = Checkpoint(resolve_inside(self.folder, path))
        return checkpoint if checkpoint.folder.is_dir() else None

    def prepare(self, checkpoint: Checkpoint | None, log: Callable[[str], None], uses_best: bool = True) -> None:
        """Make place for what follows `checkpoint`: leftovers go, newer ones, which are damaged, are set aside.

        If checkpoints are `uses_best`, best.json is written again if it, or the checkpoint that it names, is damaged;
        `log` receives the reason.
        """
        for name in (SAVING, REMOVING):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        for path in self._list_folders():
            if checkpoint and path.name > checkpoint.folder.name:
                set_aside(path)
        if uses_best and self.best.recover(self.list_all(), log):
            self.best.write()

    def list_all(self) -> list[Checkpoint]:
        """Return every checkpoint, damaged or not, oldest first."""
        return [Checkpoint(path) for path in self._list_folders()]

    def save(self, training: TrainingComponents, counters: Counters, actor: Actor, monitor: Stateful) -> Checkpoint:
        """Write a checkpoint beside the others; it has its name only once all of it is on the disk.

        Raises OSError where it cannot be written; then everything is as it was.
        """
        target = self.folder / f"{counters.env_steps:012d}"
        if target.exists():
            return Checkpoint(target)
        temporary = self.folder / SAVING
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir(parents=True)
            manifest = Manifest(temporary)
            _save_components(manifest, training)
            _save_actor(manifest, actor)
            metadata = {
                "counters": asdict(counters),
                "monitor": monitor.state(),
                "roles": {role: _describe_components(components) for role, components in training.by_role.items()},
                "generators": get_process_state(),
            }
            with manifest.open_file(METADATA) as file:
                file.write(json.dumps(metadata).encode())
            manifest.write()
            sync_folder(temporary)
            temporary.rename(target)
            sync_folder(self.folder)
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        self._remove_old()
        return Checkpoint(target)

    def _remove_old(self) -> None:
        best = self.best.checkpoint
        for old in self._list_folders()[: -self.keep]:
            if best and old == best.folder:
                continue
            unneeded = self.folder / REMOVING  # so that half of one is never taken for a checkpoint
            shutil.rmtree(unneeded, ignore_errors=True)
            shutil.rmtree(old.rename(unneeded), ignore_errors=True)

    def _list_folders(self) -> list[Path]:
        if not self.folder.is_dir():
            return []
        return sorted(path for path in self.folder.iterdir() if path.name.isdecimal() and not path.is_symlink())


def _save_components(manifest: Manifest, training: TrainingComponents) -> None:
    """Write weights, learner and replay of every team."""
    for role, components in training.by_role.items():
        role_folder = quote(role, safe="")
        (manifest.folder / role_folder).mkdir()
        _save_torch(manifest, f"{role_folder}/{WEIGHTS}", components.learner.parameters.state())
        _save_torch(manifest, f"{role_folder}/{LEARNER}", components.learner.state())
        with manifest.open_file(f"{role_folder}/{REPLAY}") as file:
            np.savez(file, **components.scheduler.replay.state())
        sync_folder(manifest.folder / role_folder)


def _save_actor(manifest: Manifest, actor: Actor) -> None:
    state = actor.state()
    if state is not None:
        with manifest.open_file(ACTOR) as file:
            np.savez(file, **state)


def _save_torch(manifest: Manifest, name: str, state: dict[str, Any]) -> None:
    memory = io.BytesIO()  # torch's own writer raises no OSError where the disk is full
    torch.save(state, memory)
    with manifest.open_file(name) as file:
        file.write(memory.getbuffer())


def _describe_components(components: AgentComponents) -> dict[str, Any]:
    generators = {name: rng.bit_generator.state for name, rng in list_generators(components).items()}
    lanes = {"lanes": components.role.lanes, "initial_lanes": components.scheduler.replay.initial_lanes}
    return {"generators": generators, "scheduler": components.scheduler.state(), **lanes}
