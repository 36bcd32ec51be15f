"""Runs on disk: whole or not at all, and nothing in them that could run."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote
from zipfile import BadZipFile, ZipFile

import numpy as np
import torch

from algorithm.loop.actor import Actor
from algorithm.loop.files import replace, settle, written
from algorithm.loop.generators import generators_of, of_process, restore_process
from algorithm.loop.monitor import Counters, Monitor
from algorithm.loop.parts import Parts, Team
from algorithm.networks.parameters import State

SAVING = "saving"  # the folder of a checkpoint that is not complete yet
REMOVING = "removing"  # the folder of one that is not needed any more
DAMAGED = "damaged-"  # before the name of one that was passed over
WEIGHTS, LEARNER, REPLAY, ACTOR, ABOUT = "weights.pt", "learner.pt", "replay.npz", "actor.npz", "counters.json"
# What files that are not what they should be, and states that do not fit, raise when they are read.
BROKEN = (OSError, ValueError, KeyError, TypeError, RuntimeError, EOFError, BadZipFile)


class CheckpointError(ValueError):
    """A checkpoint is missing, broken, of something else, or could not be written."""


class Checkpoint:
    """One saved moment of a run: a folder with counters.json, actor.npz where the simulator can be put back, and for
    each role weights, learner and replay.

    Raises CheckpointError, naming the file, for whatever cannot be read.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    @property
    def counters(self) -> Counters:
        """How far the run was."""
        about = self._about()
        try:
            return Counters(**about["counters"])
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"{self.folder / ABOUT}: {error}") from error

    @property
    def roles(self) -> list[str]:
        """The roles that were there."""
        return list(self._about()["roles"])

    def weights(self, role: str) -> State:
        """Parameters, copies and statistics of a role."""
        return self._torch(role, WEIGHTS)

    def check(self, name: str | None = None) -> None:
        """Read the files of this name, or every file: each is there and as it was written."""
        about = self._about()
        for file in about.get("files", []):
            if name in (None, file.rpartition("/")[2]):
                _check(self.folder / file)

    def restore(self, role: str, team: Team) -> None:
        """Bring a team to where it was."""
        about = self._about()
        try:
            saved = about["roles"][role]
            for name, rng in generators_of(team).items():
                rng.bit_generator.state = saved["generators"][name]
            team.learner.parameters.load(self.weights(role))
            team.learner.restore(self._torch(role, LEARNER))
            team.feed.restore(saved["feed"])
            team.feed.replay.restore(_arrays(self._of(role) / REPLAY))
        except CheckpointError:
            raise
        except BROKEN as error:
            raise CheckpointError(f"{self._of(role)}: {_line(error)}") from error

    def resume(self, actor: Actor, monitor: Monitor) -> None:
        """Bring what goes around the teams to where it was, when these are; last the generators of the process.

        Where the simulator could not be saved, its new episodes stand.
        """
        about, path = self._about(), self.folder / ACTOR
        try:
            if ACTOR in about["files"]:
                actor.restore(_arrays(path))
            monitor.restore(about["monitor"])
            restore_process(about["generators"])
        except BROKEN as error:
            raise CheckpointError(f"{self.folder}: {_line(error)}") from error

    def _of(self, role: str) -> Path:
        return self.folder / quote(role, safe="")

    def _about(self) -> dict[str, Any]:
        path = self.folder / ABOUT
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise CheckpointError(f"{path} is missing") from error
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} is damaged ({error})") from error

    def _torch(self, role: str, name: str) -> dict[str, Any]:
        path = self._of(role) / name
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises many kinds for a damaged file
            raise CheckpointError(f"{path}: {type(error).__name__}: {_line(error)}") from error


class Checkpoints:
    """The last `keep` checkpoints of a run."""

    def __init__(self, folder: Path, keep: int):
        self.folder = folder
        self.keep = keep

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

    def save(self, parts: Parts, counters: Counters, actor: Actor, monitor: Monitor) -> Checkpoint:
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
        for old in self._complete()[: -self.keep]:
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
    return {"generators": generators, "feed": team.feed.state()}


def _arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def _check(path: Path) -> None:
    """Compare every check sum of a file: numpy and torch both write zip archives."""
    try:
        with ZipFile(path) as archive:
            damaged = archive.testzip()
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing") from error
    except (*BROKEN, NotImplementedError) as error:
        raise CheckpointError(f"{path} is damaged ({_line(error)})") from error
    if damaged is not None:
        raise CheckpointError(f"{path} is damaged (in {damaged})")


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
