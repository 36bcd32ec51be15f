"""One checkpoint: its files, in formats that contain no code, and their digests, by which damage is detected."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, Protocol
from urllib.parse import quote
from zipfile import BadZipFile

import numpy as np
import torch

from algorithm.atomic_io import open_synced
from algorithm.checkpointing.rng_state import list_generators, set_process_state
from algorithm.networks.flat_parameters import State
from algorithm.training.components import AgentComponents
from algorithm.training.learner import Learner
from algorithm.training.progress import Counters

MANIFEST = "manifest.json"
DIGEST_BYTES = 32  # bytes of a digest
BLOCK_BYTES = 2**20  # bytes that are read at once; blocks of at least this size are digested in a thread
WEIGHTS, LEARNER, REPLAY, ACTOR, METADATA = "weights.pt", "learner.pt", "replay.npz", "actor.npz", "counters.json"
# Errors that are raised when damaged files are read, and when states do not fit.
READ_ERRORS = (OSError, ValueError, KeyError, TypeError, RuntimeError, EOFError, BadZipFile)


class CheckpointError(ValueError):
    """A checkpoint is missing, damaged, does not fit the run, or could not be written."""


class Manifest:
    """The manifest of a folder: the BLAKE2b digest of each of its files, and of itself (`b2sum -l 256`).

    BLAKE2b digests about 1 GB/s on every processor, SHA-256 only on processors with instructions for it.

    Attributes:
        digests: {path in the folder: digest, in hexadecimal digits}.
    """

    def __init__(self, folder: Path, digests: Mapping[str, str] | None = None):
        self.folder = folder
        self.digests = dict(digests or {})

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read the manifest of a folder. Raises CheckpointError if it is missing or damaged."""
        path = folder / MANIFEST
        try:
            content = path.read_bytes()
            manifest = cls(folder, json.loads(content)["files"])
        except FileNotFoundError as error:
            raise CheckpointError(f"{path} is missing") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path} is damaged ({error})") from error
        if manifest._serialize() != content:
            raise CheckpointError(f"{path} is damaged")
        return manifest

    def write(self) -> None:
        """Write the manifest, after every file."""
        with open_synced(self.folder / MANIFEST) as file:
            file.write(self._serialize())

    @contextmanager
    def open_file(self, name: str) -> Iterator[io.RawIOBase]:
        """Yield a new file to write to, which cannot seek. It is on the disk when the block ends."""
        with open_synced(self.folder / name) as file, ThreadPoolExecutor(1) as thread:
            digesting = _DigestingFile(file, thread)
            yield digesting
        self.digests[name] = digesting.digest.hexdigest()

    def check(self, *names: str) -> None:
        """Compare the digests of the files with these names, or of all files, with the manifest.

        Raises:
            CheckpointError: a file differs.
        """
        for name, digest in self.digests.items():
            if not names or name.rpartition("/")[2] in names:
                path = self.folder / name
                if _compute_digest(path) != digest:
                    raise CheckpointError(f"{path} is damaged (it is not what was written)")

    def _serialize(self) -> bytes:
        files = json.dumps(self.digests, indent=1)
        digest = blake2b(files.encode(), digest_size=DIGEST_BYTES).hexdigest()
        return f'{{"files": {files},\n"digest": "{digest}"}}\n'.encode()


class _DigestingFile(io.RawIOBase):
    """A file that digests what is written to it, large blocks in a thread. It cannot seek."""

    def __init__(self, file: BinaryIO, thread: ThreadPoolExecutor):
        self._file, self._thread = file, thread
        self.digest = blake2b(digest_size=DIGEST_BYTES)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if len(data) < BLOCK_BYTES:
            self.digest.update(data)
            return self._file.write(data)
        digesting = self._thread.submit(self.digest.update, data)
        count = self._file.write(data)
        digesting.result()
        return count


def _compute_digest(path: Path) -> str:
    """Return the digest of a file. Raises CheckpointError if it cannot be read."""
    digest = blake2b(digest_size=DIGEST_BYTES)
    try:
        with path.open("rb") as file:
            while block := file.read(BLOCK_BYTES):
                digest.update(block)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing") from error
    except OSError as error:
        raise CheckpointError(f"{path} is damaged ({error})") from error
    return digest.hexdigest()


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
    replay for each role, and the manifest of all files. A run with workers has the replay and the environments of
    worker k > 0 in a folder `worker-k`. Every method raises CheckpointError, with the name of the file, for a file that
    cannot be read.

    Args:
        folder: the folder.
        worker: the worker whose experience is read.
    """

    def __init__(self, folder: Path, worker: int = 0):
        self.folder = folder
        self.worker = worker

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
        metadata = self._read_experience()["roles"][role]
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

    def restore_learner(self, role: str, learner: Learner) -> None:
        """Restore the weights and the learner of a role."""
        try:
            learner.parameters.load(self.weights(role))
            learner.restore(self._load_torch(role, LEARNER))
        except CheckpointError:
            raise
        except READ_ERRORS as error:
            raise CheckpointError(f"{self._role_folder(role)}: {_one_line(error)}") from error

    def restore_experience(self, role: str, components: AgentComponents) -> None:
        """Restore the generators, the schedule and the replay of a role."""
        saved = self._read_experience()["roles"][role]
        try:
            for name, rng in list_generators(components).items():
                rng.bit_generator.state = saved["generators"][name]
            components.scheduler.restore(saved["scheduler"])
            if components.explorer and saved.get("explorer"):  # a run may be resumed with another explorer
                components.explorer.restore(saved["explorer"])
            name = f"{self._prefix}{quote(role, safe='')}/{REPLAY}"
            replay = components.scheduler.replay
            if replay and name in Manifest.read(self.folder).digests:
                replay.restore(_load_arrays(self.folder / name))
            components.learner.restore_own(self._load_torch(role, LEARNER, self._prefix))
        except READ_ERRORS as error:
            raise CheckpointError(f"{self._role_folder(role)}: {_one_line(error)}") from error

    def restore_process(self, actor: StatefulActor) -> None:
        """Restore the actor, after the components of its roles, and then the generators of the process.

        The actor keeps its new episodes if the checkpoint has no state of the environments.
        """
        name = f"{self._prefix}{ACTOR}"
        try:
            if name in Manifest.read(self.folder).digests:
                actor.restore(_load_arrays(self.folder / name))
            set_process_state(self._read_experience()["generators"])
        except READ_ERRORS as error:
            raise CheckpointError(f"{self.folder}: {_one_line(error)}") from error

    def restore_states(self, states: Mapping[str, Stateful]) -> None:
        """Restore parts of a run, by name; a part without a state in the checkpoint is unchanged."""
        saved = self._read_metadata()["states"]
        try:
            for name, part in states.items():
                if name in saved:
                    part.restore(saved[name])
        except READ_ERRORS as error:
            raise CheckpointError(f"{self.folder}: {_one_line(error)}") from error

    @property
    def has_experience(self) -> bool:
        """Return whether the checkpoint has experience of the worker."""
        return self.worker == 0 or str(self.worker) in self._read_metadata().get("workers", {})

    @property
    def _prefix(self) -> str:
        """Return the folder of the worker's files, with a slash; empty for worker 0."""
        return make_prefix(self.worker)

    def _role_folder(self, role: str) -> Path:
        return self.folder / quote(role, safe="")

    def _read_experience(self) -> dict[str, Any]:
        """Return what counters.json has about the roles and generators of the worker."""
        metadata = self._read_metadata()
        return metadata if self.worker == 0 else metadata["workers"][str(self.worker)]

    def _read_metadata(self) -> dict[str, Any]:
        path = self.folder / METADATA
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise CheckpointError(f"{path} is missing") from error
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} is damaged ({error})") from error

    def _load_torch(self, role: str, name: str, prefix: str = "") -> dict[str, Any]:
        path = self.folder / prefix / quote(role, safe="") / name
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises many kinds of errors for a damaged file
            raise CheckpointError(f"{path}: {type(error).__name__}: {_one_line(error)}") from error


def make_prefix(worker: int) -> str:
    """Return the folder of a worker's files in a checkpoint, with a slash; empty for worker 0."""
    return f"worker-{worker}/" if worker else ""


def _load_arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
