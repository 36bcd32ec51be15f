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
from algorithm.checkpointing.rng_state import list_generators, set_process_state
from algorithm.networks.flat_parameters import State
from algorithm.training.actor import Actor
from algorithm.training.components import AgentComponents
from algorithm.training.history import Counters

WEIGHTS, LEARNER, REPLAY, ACTOR, METADATA = "weights.pt", "learner.pt", "replay.npz", "actor.npz", "counters.json"
# What files that are not what they should be, and states that do not fit, raise when they are read.
READ_ERRORS = (OSError, ValueError, KeyError, TypeError, RuntimeError, EOFError, BadZipFile)


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
        metadata = self._read_metadata()
        try:
            return Counters(**metadata["counters"])
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"{self.folder / METADATA}: {error}") from error

    @property
    def roles(self) -> list[str]:
        """The roles that were there."""
        return list(self._read_metadata()["roles"])

    def lanes(self, role: str) -> tuple[int, int]:
        """Return the number of lanes of a role, and that of its initial lanes."""
        metadata = self._read_metadata()["roles"][role]
        try:
            return metadata["lanes"], metadata["initial_lanes"]
        except KeyError as error:
            raise CheckpointError(f"{self.folder / METADATA}: role {role!r} has no {error}") from error

    def weights(self, role: str) -> State:
        """Return parameters, copies and statistics of a role; all of them are finite."""
        state = self._load_torch(role, WEIGHTS)
        if not all(tensor.isfinite().all() for kind in state.values() for tensor in kind.values()):
            raise CheckpointError(
                f"{self._role_folder(role) / WEIGHTS} holds NaN or infinity: take an earlier checkpoint (to play: --ckpt; "
                f"to resume: move {self.folder} out of the run folder)"
            )
        return state

    def check(self, name: str | None = None) -> None:
        """Compare counters.json and the files of this name, or every file, with what was written."""
        Manifest.read(self.folder).check(*([METADATA, name] if name else []))

    def restore(self, role: str, components: AgentComponents) -> None:
        """Bring a team to where it was."""
        metadata = self._read_metadata()
        try:
            saved = metadata["roles"][role]
            for name, rng in list_generators(components).items():
                rng.bit_generator.state = saved["generators"][name]
            components.learner.parameters.load(self.weights(role))
            components.learner.restore(self._load_torch(role, LEARNER))
            components.scheduler.restore(saved["scheduler"])
            components.scheduler.replay.restore(_load_arrays(self._role_folder(role) / REPLAY))
        except CheckpointError:
            raise
        except READ_ERRORS as error:
            raise CheckpointError(f"{self._role_folder(role)}: {_one_line(error)}") from error

    def restore_run(self, actor: Actor, monitor: Stateful) -> None:
        """Bring what goes around the teams to where it was, when these are; last the generators of the process.

        Where the simulator could not be saved, its new episodes stand.
        """
        metadata, path = self._read_metadata(), self.folder / ACTOR
        try:
            if ACTOR in Manifest.read(self.folder).digests:
                actor.restore(_load_arrays(path))
            monitor.restore(metadata["monitor"])
            set_process_state(metadata["generators"])
        except READ_ERRORS as error:
            raise CheckpointError(f"{self.folder}: {_one_line(error)}") from error

    def _role_folder(self, role: str) -> Path:
        return self.folder / quote(role, safe="")

    def _read_metadata(self) -> dict[str, Any]:
        path = self.folder / METADATA
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise CheckpointError(f"{path} is missing") from error
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} is damaged ({error})") from error

    def _load_torch(self, role: str, name: str) -> dict[str, Any]:
        path = self._role_folder(role) / name
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises many kinds for a damaged file
            raise CheckpointError(f"{path}: {type(error).__name__}: {_one_line(error)}") from error


def _load_arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
