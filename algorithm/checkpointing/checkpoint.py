"""One saved moment of a run, read with nothing in it that could run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote
from zipfile import BadZipFile

import numpy as np
import torch

from algorithm.checkpointing.manifest import CheckpointError, Manifest
from algorithm.checkpointing.rng_state import generators_of, restore_process
from algorithm.networks.flat_parameters import State
from algorithm.training.actor import Actor
from algorithm.training.components import Team
from algorithm.training.history import Counters

WEIGHTS, LEARNER, REPLAY, ACTOR, ABOUT = "weights.pt", "learner.pt", "replay.npz", "actor.npz", "counters.json"
# What files that are not what they should be, and states that do not fit, raise when they are read.
BROKEN = (OSError, ValueError, KeyError, TypeError, RuntimeError, EOFError, BadZipFile)


class Stateful(Protocol):
    """What decides beside teams and actor, as values that JSON holds: the monitor."""

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: Mapping[str, Any]) -> None: ...


class Checkpoint:
    """One saved moment of a run: a folder with counters.json, actor.npz if the simulator can be restored, for each
    role weights, learner and replay, and the manifest of them all.

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

    def lanes(self, role: str) -> tuple[int, int]:
        """Return the number of lanes of a role, and that of its initial lanes."""
        about = self._about()["roles"][role]
        try:
            return about["lanes"], about["initial_lanes"]
        except KeyError as error:
            raise CheckpointError(f"{self.folder / ABOUT}: role {role!r} has no {error}") from error

    def weights(self, role: str) -> State:
        """Return parameters, copies and statistics of a role; all of them are finite."""
        state = self._torch(role, WEIGHTS)
        if not all(tensor.isfinite().all() for kind in state.values() for tensor in kind.values()):
            raise CheckpointError(
                f"{self._of(role) / WEIGHTS} holds NaN or infinity: take an earlier checkpoint (to play: --ckpt; "
                f"to resume: move {self.folder} out of the run folder)"
            )
        return state

    def check(self, name: str | None = None) -> None:
        """Compare counters.json and the files of this name, or every file, with what was written."""
        Manifest.read(self.folder).check(*([ABOUT, name] if name else []))

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

    def resume(self, actor: Actor, monitor: Stateful) -> None:
        """Bring what goes around the teams to where it was, when these are; last the generators of the process.

        Where the simulator could not be saved, its new episodes stand.
        """
        about, path = self._about(), self.folder / ACTOR
        try:
            if ACTOR in Manifest.read(self.folder).digests:
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


def _arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
