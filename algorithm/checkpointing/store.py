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

from algorithm.checkpointing.atomic_io import resolve_inside, set_aside, settle
from algorithm.checkpointing.best import Best
from algorithm.checkpointing.checkpoint import (
    ABOUT,
    ACTOR,
    LEARNER,
    REPLAY,
    WEIGHTS,
    Checkpoint,
    Stateful,
)
from algorithm.checkpointing.manifest import CheckpointError, Manifest
from algorithm.checkpointing.rng_state import generators_of, of_process
from algorithm.training.actor import Actor
from algorithm.training.components import Parts, Team
from algorithm.training.history import Counters

SAVING = "saving"  # the folder of a checkpoint that is not complete yet
REMOVING = "removing"  # the folder of one that is not needed any more


class Checkpoints:
    """The last `keep` checkpoints of a run, and the best one."""

    def __init__(self, folder: Path, keep: int):
        self.folder = folder
        self.keep = keep
        self.best = Best(folder)

    def __bool__(self) -> bool:
        """Whether there is any, whatever it is worth."""
        return bool(self._complete())

    def latest(self, say: Callable[[str], None], name: str | None = None) -> Checkpoint | None:
        """The newest checkpoint whose files (of this `name`) can be read, None where there is none at all.

        `say` is told of every newer one that cannot. Raises CheckpointError naming all where that is true of all.
        """
        damaged = []
        for path in reversed(self._complete()):
            checkpoint = Checkpoint(path)
            try:
                checkpoint.check(name)
            except CheckpointError as error:
                damaged.append(str(error))
                continue
            for why in damaged:
                say(f"{why}: checkpoint {path.name} is used instead")
            return checkpoint
        if damaged:
            raise CheckpointError(f"no checkpoint in {self.folder} can be read: {'; '.join(damaged)}")
        return None

    def find(self, which: str) -> Checkpoint | None:
        """Return the checkpoint with this number of env steps, or in this folder; None if there is none.

        Raises ValueError for a folder elsewhere.
        """
        path = self.folder / (f"{int(which):012d}" if which.isdecimal() else Path(which).absolute())
        checkpoint = Checkpoint(resolve_inside(self.folder, path))
        return checkpoint if checkpoint.folder.is_dir() else None

    def begin(self, checkpoint: Checkpoint | None, say: Callable[[str], None], compared: bool = True) -> None:
        """Make place for what follows `checkpoint`: leftovers go, newer ones, which are damaged, are set aside.

        If checkpoints are `compared`, best.json is written again if it, or the checkpoint that it names, is damaged;
        `say` receives the reason.
        """
        for name in (SAVING, REMOVING):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        for path in self._complete():
            if checkpoint and path.name > checkpoint.folder.name:
                set_aside(path)
        if compared and self.best.recover(self.all(), say):
            self.best.write()

    def all(self) -> list[Checkpoint]:
        """Return every checkpoint, damaged or not, oldest first."""
        return [Checkpoint(path) for path in self._complete()]

    def save(self, parts: Parts, counters: Counters, actor: Actor, monitor: Stateful) -> Checkpoint:
        """Write a checkpoint beside the others; it has its name only once all of it is on the disk.

        Raises OSError where it cannot be written; then everything is as it was.
        """
        place = self.folder / f"{counters.env_steps:012d}"
        if place.exists():
            return Checkpoint(place)
        fresh = self.folder / SAVING
        shutil.rmtree(fresh, ignore_errors=True)
        try:
            fresh.mkdir(parents=True)
            manifest = Manifest(fresh)
            _save_teams(manifest, parts)
            _save_actor(manifest, actor)
            about = {
                "counters": asdict(counters),
                "monitor": monitor.state(),
                "roles": {role: _about_team(team) for role, team in parts.teams.items()},
                "generators": of_process(),
            }
            with manifest.open_file(ABOUT) as file:
                file.write(json.dumps(about).encode())
            manifest.write()
            settle(fresh)
            fresh.rename(place)
            settle(self.folder)
        except OSError:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        self._remove_old()
        return Checkpoint(place)

    def _remove_old(self) -> None:
        best = self.best.checkpoint
        for old in self._complete()[: -self.keep]:
            if best and old == best.folder:
                continue
            unneeded = self.folder / REMOVING  # so that half of one is never taken for a checkpoint
            shutil.rmtree(unneeded, ignore_errors=True)
            shutil.rmtree(old.rename(unneeded), ignore_errors=True)

    def _complete(self) -> list[Path]:
        if not self.folder.is_dir():
            return []
        return sorted(path for path in self.folder.iterdir() if path.name.isdecimal() and not path.is_symlink())


def _save_teams(manifest: Manifest, parts: Parts) -> None:
    """Write weights, learner and replay of every team."""
    for role, team in parts.teams.items():
        own = quote(role, safe="")
        (manifest.folder / own).mkdir()
        _save_torch(manifest, f"{own}/{WEIGHTS}", team.learner.parameters.state())
        _save_torch(manifest, f"{own}/{LEARNER}", team.learner.state())
        with manifest.open_file(f"{own}/{REPLAY}") as file:
            np.savez(file, **team.feed.replay.state())
        settle(manifest.folder / own)


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


def _about_team(team: Team) -> dict[str, Any]:
    generators = {name: rng.bit_generator.state for name, rng in generators_of(team).items()}
    lanes = {"lanes": team.role.lanes, "initial_lanes": team.feed.replay.initial_lanes}
    return {"generators": generators, "feed": team.feed.state(), **lanes}
