"""Runs on disk: whole or not at all, and nothing in them that could run."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote
from zipfile import BadZipFile

import numpy as np
import torch

from algorithm.loop.history import Counters
from algorithm.loop.parts import Parts, Team
from algorithm.networks.parameters import State

SAVING = "saving"  # the folder of a checkpoint that is not complete yet


class CheckpointError(ValueError):
    """A checkpoint is missing, broken, or of something else."""


class Checkpoint:
    """One saved moment of a run: a folder with counters.json, and for each role weights, learner and replay.

    Raises CheckpointError, naming the file, for whatever cannot be read.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    @property
    def counters(self) -> Counters:
        """How far the run was."""
        return Counters(**self._json()["counters"])

    @property
    def roles(self) -> list[str]:
        """The roles that were there."""
        return list(self._json()["generators"])

    def weights(self, role: str) -> State:
        """Parameters, copies and statistics of a role."""
        return self._torch(role, "weights.pt")

    def restore(self, role: str, team: Team) -> None:
        """Bring a team to where it was."""
        path = self._of(role) / "replay.npz"
        try:
            generators = self._json()["generators"][role]
            for name, rng in _generators(team).items():
                rng.bit_generator.state = generators[name]
            team.learner.parameters.load(self.weights(role))
            team.learner.restore(self._torch(role, "learner.pt"))
            if path.exists():
                with np.load(path, allow_pickle=False) as arrays:
                    team.feed.replay.restore(dict(arrays))
        except CheckpointError:
            raise
        except (ValueError, KeyError, OSError, BadZipFile) as error:
            raise CheckpointError(f"{self._of(role)}: {error}") from error

    def _of(self, role: str) -> Path:
        return self.folder / quote(role, safe="")

    def _json(self) -> dict[str, Any]:
        path = self.folder / "counters.json"
        try:
            return json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: {error}") from error

    def _torch(self, role: str, name: str) -> dict[str, Any]:
        path = self._of(role) / name
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises many kinds for a damaged file
            raise CheckpointError(f"{path}: {type(error).__name__}: {error}") from error


class Checkpoints:
    """The last `keep` checkpoints of a run, and the best one."""

    def __init__(self, folder: Path, keep: int):
        self.folder = folder
        self.keep = keep
        self.best = Best(folder)

    def latest(self) -> Checkpoint | None:
        """The newest complete checkpoint."""
        complete = self._complete()
        return Checkpoint(complete[-1]) if complete else None

    def save(self, parts: Parts, counters: Counters) -> Checkpoint:
        """Write a checkpoint beside the others; it has its name only once all of it is written."""
        place = self.folder / f"{counters.env_steps:012d}"
        if place.exists():
            return Checkpoint(place)
        fresh = self.folder / SAVING
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        generators = {}
        for role, team in parts.teams.items():
            own = fresh / quote(role, safe="")
            own.mkdir()
            torch.save(team.learner.parameters.state(), own / "weights.pt")
            torch.save(team.learner.state(), own / "learner.pt")
            np.savez(own / "replay.npz", **team.feed.replay.state())
            generators[role] = {name: rng.bit_generator.state for name, rng in _generators(team).items()}
        text = json.dumps({"counters": asdict(counters), "generators": generators}, indent=1)
        (fresh / "counters.json").write_text(text)
        fresh.rename(place)
        best = self.best.checkpoint
        for old in self._complete()[: -self.keep]:
            if best is None or old != best.folder:
                shutil.rmtree(old)
        return Checkpoint(place)

    def _complete(self) -> list[Path]:
        if not self.folder.is_dir():
            return []
        return sorted(path for path in self.folder.iterdir() if path.name.isdigit())


class Best:
    """The file best.json beside the checkpoints: which of them did best on held-out episodes, and its mean return.

    Raises CheckpointError, naming the file, where it cannot be read.
    """

    def __init__(self, folder: Path):
        self.path = folder / "best.json"

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The best checkpoint; None where none was evaluated, or it is no longer there."""
        name = self._read()[0]
        place = self.path.parent / name
        return Checkpoint(place) if name and place.is_dir() else None

    @property
    def mean(self) -> float:
        """Its mean return over episodes and roles; minus infinity where none was evaluated."""
        return self._read()[1]

    def name(self, checkpoint: Checkpoint, mean: float) -> None:
        """From now on it is this one."""
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps({"checkpoint": checkpoint.folder.name, "return": mean}))
        fresh.replace(self.path)

    def _read(self) -> tuple[str, float]:
        try:
            content = json.loads(self.path.read_text())
            return content["checkpoint"], float(content["return"])
        except FileNotFoundError:
            return "", float("-inf")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{self.path}: {error}") from error


def _generators(team: Team) -> dict[str, np.random.Generator]:
    return {"agent": team.agent.rng, "feed": team.feed.rng, "replay": team.feed.replay.rng}
