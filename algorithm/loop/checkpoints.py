"""Runs on disk: whole or not at all."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch

from algorithm.loop.actor import Actor
from algorithm.loop.best import Best
from algorithm.loop.checkpoint import (
    ABOUT,
    ACTOR,
    LEARNER,
    REPLAY,
    WEIGHTS,
    Checkpoint,
    CheckpointError,
    Stateful,
)
from algorithm.loop.files import replace, settle, written
from algorithm.loop.generators import generators_of, of_process
from algorithm.loop.history import Counters
from algorithm.loop.parts import Parts, Team

SAVING = "saving"  # the folder of a checkpoint that is not complete yet
REMOVING = "removing"  # the folder of one that is not needed any more
DAMAGED = "damaged-"  # before the name of one that was passed over


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

    def begin(self, checkpoint: Checkpoint | None) -> None:
        """Make place for what follows `checkpoint`: leftovers go, newer ones, which are damaged, are set aside."""
        for name in (SAVING, REMOVING):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        for path in self._complete():
            if checkpoint and path.name > checkpoint.folder.name:
                aside = path.with_name(DAMAGED + path.name)
                shutil.rmtree(aside, ignore_errors=True)
                path.rename(aside)

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
            files = [*_save_teams(fresh, parts), *_save_actor(fresh, actor)]
            about = {
                "counters": asdict(counters),
                "monitor": monitor.state(),
                "roles": {role: _about_team(team) for role, team in parts.teams.items()},
                "generators": of_process(),
                "files": files,
            }
            replace(fresh / ABOUT, json.dumps(about))
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
        return sorted(path for path in self.folder.iterdir() if path.name.isdigit())


def _save_teams(folder: Path, parts: Parts) -> Iterator[str]:
    """Write what the teams have learned; the names of the files."""
    for role, team in parts.teams.items():
        own = folder / quote(role, safe="")
        own.mkdir()
        _save_torch(own / WEIGHTS, team.learner.parameters.state())
        _save_torch(own / LEARNER, team.learner.state())
        with written(own / REPLAY) as file:
            np.savez(file, **team.feed.replay.state())
        settle(own)
        yield from (f"{own.name}/{name}" for name in (WEIGHTS, LEARNER, REPLAY))


def _save_actor(folder: Path, actor: Actor) -> Iterator[str]:
    state = actor.state()
    if state is not None:
        with written(folder / ACTOR) as file:
            np.savez(file, **state)
        yield ACTOR


def _save_torch(path: Path, state: dict[str, Any]) -> None:
    memory = io.BytesIO()  # torch's own writer raises no OSError where the disk is full
    torch.save(state, memory)
    with written(path) as file:
        file.write(memory.getbuffer())


def _about_team(team: Team) -> dict[str, Any]:
    generators = {name: rng.bit_generator.state for name, rng in generators_of(team).items()}
    lanes = {"lanes": team.role.lanes, "initial_lanes": team.feed.replay.initial_lanes}
    return {"generators": generators, "feed": team.feed.state(), **lanes}
