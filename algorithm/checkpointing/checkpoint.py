"""Reading of a checkpoint, in formats that contain no code."""

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
from algorithm.training.components import AgentComponents
from algorithm.training.history import Counters

WEIGHTS, LEARNER, REPLAY, ACTOR, METADATA = "weights.pt", "learner.pt", "replay.npz", "actor.npz", "counters.json"
# Errors that are raised when damaged files are read, and when states do not fit.
READ_ERRORS = (OSError, ValueError, KeyError, TypeError, RuntimeError, EOFError, BadZipFile)


class Stateful(Protocol):
    """A part of a run whose state consists of values of JSON."""

    def state(self) -> dict[str, Any]:
        """Return the state."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""


class StatefulActor(Protocol):
    """An actor, whose state consists of named arrays."""

    def state(self) -> dict[str, np.ndarray] | None:
        """Return the state; None if it cannot be restored."""

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Restore what `state` returned."""


class Checkpoint:
    """A checkpoint of a run: its folder, and methods that read it.

    The folder has counters.json, actor.npz if the environments can be restored, a folder with weights, learner and
    replay for each role, and the manifest of all files. Every method raises CheckpointError, with the name of the file,
    for a file that cannot be read.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    @property
    def counters(self) -> Counters:
        """Return the counters of the run."""
        metadata = self._read_metadata()
        try:
            return Counters(**metadata["counters"])
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"{self.folder / METADATA}: {error}") from error

    @property
    def roles(self) -> list[str]:
        """Return the names of the roles."""
        return list(self._read_metadata()["roles"])

    def lanes(self, role: str) -> tuple[int, int]:
        """Return the number of lanes of a role, and the number of its initial lanes."""
        metadata = self._read_metadata()["roles"][role]
        try:
            return metadata["lanes"], metadata["initial_lanes"]
        except KeyError as error:
            raise CheckpointError(f"{self.folder / METADATA}: role {role!r} has no {error}") from error

    def weights(self, role: str) -> State:
        """Return parameters, target networks and statistics of a role, all of which are finite."""
        state = self._load_torch(role, WEIGHTS)
        if not all(tensor.isfinite().all() for kind in state.values() for tensor in kind.values()):
            raise CheckpointError(
                f"{self._role_folder(role) / WEIGHTS} holds NaN or infinity: take an earlier checkpoint (to play: "
                f"--ckpt; to resume: move {self.folder} out of the run folder)"
            )
        return state

    def check(self, name: str | None = None) -> None:
        """Compare the digests of counters.json and of the files named `name`, or of every file, with the manifest."""
        Manifest.read(self.folder).check(*([METADATA, name] if name else []))

    def restore(self, role: str, components: AgentComponents) -> None:
        """Restore the components of a role."""
        metadata = self._read_metadata()
        try:
            saved = metadata["roles"][role]
            for name, rng in list_generators(components).items():
                rng.bit_generator.state = saved["generators"][name]
            components.learner.parameters.load(self.weights(role))
            components.learner.restore(self._load_torch(role, LEARNER))
            components.scheduler.restore(saved["scheduler"])
            if replay := components.scheduler.replay:
                replay.restore(_load_arrays(self._role_folder(role) / REPLAY))
        except CheckpointError:
            raise
        except READ_ERRORS as error:
            raise CheckpointError(f"{self._role_folder(role)}: {_one_line(error)}") from error

    def restore_run(self, actor: StatefulActor, states: Mapping[str, Stateful]) -> None:
        """Restore the parts of a run after the components of its roles; the generators of the process are last.

        Args:
            actor: the actor; it keeps its new episodes if the checkpoint has no state of the environments.
            states: {name: part of the run}; a part without a state in the checkpoint is unchanged.
        """
        metadata, path = self._read_metadata(), self.folder / ACTOR
        try:
            if ACTOR in Manifest.read(self.folder).digests:
                actor.restore(_load_arrays(path))
            for name, part in states.items():
                if name in metadata["states"]:
                    part.restore(metadata["states"][name])
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
        except Exception as error:  # torch raises many kinds of errors for a damaged file
            raise CheckpointError(f"{path}: {type(error).__name__}: {_one_line(error)}") from error


def _load_arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
