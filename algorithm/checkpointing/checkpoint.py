"""The files of a checkpoint, in formats that contain no code: their digests, their contents, and their transfer."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from pickle import UnpicklingError
from types import MappingProxyType
from typing import Any, BinaryIO, Protocol, TypeVar
from urllib.parse import quote
from zipfile import BadZipFile

import numpy as np
import torch

from algorithm.atomic_io import open_synced, resolve_inside, sync_folder
from algorithm.errors import summarize_error
from algorithm.networks.flat_parameters import State
from algorithm.records_io import DIGEST_BYTES, OpenRecord, RecordError, read_json
from algorithm.training.components import AgentComponents, TrainingComponents
from algorithm.training.learner import Learner
from algorithm.training.progress import Counters

WEIGHTS, LEARNER, REPLAY, ACTOR = "weights.pt", "learner.pt", "replay.npz", "actor.npz"
METADATA, MANIFEST = "counters.json", "manifest.json"
# Errors that are raised when damaged files are read, and when states do not fit.
READ_ERRORS = (OSError, ValueError, KeyError, TypeError, RuntimeError, EOFError, BadZipFile, UnpicklingError)
T = TypeVar("T")
BLOCK_BYTES = 2**20  # bytes that are read at once; blocks of at least this size are digested in a thread


class CheckpointError(ValueError):
    """A checkpoint is missing, damaged, does not fit the run, or could not be written."""


class ManifestRecord(OpenRecord):
    """The content of manifest.json."""

    files: dict[str, str]


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
        manifest = cls(folder, read_part(folder / MANIFEST, ManifestRecord)["files"])
        if manifest._serialize() != (folder / MANIFEST).read_bytes():
            raise CheckpointError(f"{folder / MANIFEST} is damaged (it does not have its digest)")
        return manifest

    def write(self) -> None:
        """Write the manifest, after every file, and the names of all files to the disk."""
        with open_synced(self.folder / MANIFEST) as file:
            file.write(self._serialize())
        for folder in {self.folder / parent for name in self.digests for parent in Path(name).parents}:
            sync_folder(folder)

    @contextmanager
    def open_file(self, name: str) -> Iterator[io.RawIOBase]:
        """Yield a new file to write to, which cannot seek. Its content is on the disk when the block ends."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with open_synced(path) as file, ThreadPoolExecutor(1) as thread:
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
                if _digest_file(path) != digest:
                    raise CheckpointError(f"{path} is damaged (it is not what was written)")

    def _serialize(self) -> bytes:
        files = json.dumps(self.digests, indent=1)
        digest = compute_digest(files.encode())
        return f'{{"files": {files},\n"digest": "{digest}"}}\n'.encode()


def read_part(path: Path, kind: type[T], *, allow_nan: bool = False) -> T:
    """Return a record of a checkpoint, as `read_json` does. Raises CheckpointError if it is missing or damaged."""
    try:
        record = read_json(path, kind, allow_nan=allow_nan)
    except RecordError as error:
        raise CheckpointError(str(error)) from error
    if record is None:
        raise CheckpointError(f"{path} is missing")
    return record


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


def compute_digest(content: Any) -> str:
    """Return the digest of the content of a file, which is bytes or an array of bytes."""
    return blake2b(content, digest_size=DIGEST_BYTES).hexdigest()


def _digest_file(path: Path) -> str:
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


@dataclass(frozen=True)
class PackedFile:
    """A file as a message for another machine: an array of bytes, which Ray sends without a copy, and its digest."""

    content: np.ndarray
    digest: str


PackedFolder = dict[str, PackedFile]  # by path in the folder; nothing in it is executed


def pack_folder(folder: Path, names: Iterable[str], digests: Mapping[str, str] = MappingProxyType({})) -> PackedFolder:
    """Return files of a folder as a message.

    Args:
        folder: the folder.
        names: the paths of the files in it.
        digests: digests of a manifest by path; those of other files are computed.

    Raises:
        OSError: a file cannot be read.
    """
    packed = {}
    for name in names:
        content = np.fromfile(folder / name, np.uint8)
        packed[name] = PackedFile(content, digests.get(name) or compute_digest(content))
    return packed


def unpack_folder(packed: PackedFolder, manifest: Manifest) -> None:
    """Write the files of a message to the folder of a manifest, which receives their digests.

    Raises:
        CheckpointError: a file was damaged on its way.
        OSError: a file cannot be written.
        ValueError: a path is outside of the folder.
    """
    for name, packed_file in packed.items():
        resolve_inside(manifest.folder, Path(name))
        with manifest.open_file(name) as file:
            file.write(packed_file.content.data)
        if manifest.digests[name] != packed_file.digest:
            raise CheckpointError(f"{name} was damaged on its way to this machine")


class Stateful(Protocol):
    """A part of a run whose state consists of values of JSON, or an actor, whose state consists of named arrays."""

    def state(self) -> Any:
        """Return the state; None if an actor has none that can be restored."""

    def restore(self, state: Any) -> None:
        """Restore what `state` returned."""


@dataclass(eq=False)
class Checkpoint:
    """A checkpoint of a run: its folder, and methods that read it.

    The folder has counters.json, actor.npz if the environments can be restored, a folder with weights, learner and
    replay for each role, and the manifest of all files. A run with workers has the replay and the environments of
    worker k > 0 in a folder `worker-k`, and a run with several learners has the replay of learner k > 0 there. Every
    method raises CheckpointError, with the name of the file, for a file that cannot be read.

    Args:
        folder: the folder.
        worker: the worker, or the learner, whose experience is read.
    """

    folder: Path
    worker: int = 0
    _metadata: dict[str, Any] | None = field(default=None, init=False, repr=False)  # None: read when needed
    _weights: dict[str, State] = field(default_factory=dict, init=False, repr=False)  # by role, likewise

    def hold(self) -> Checkpoint:
        """Return this checkpoint with counters.json and all weights in memory, which outlast its folder."""
        self._metadata = self._read_metadata()
        self._weights = {role: self.weights(role) for role in self.roles}
        return self

    @property
    def counters(self) -> Counters:
        """Return the counters of the run."""
        with _convert_errors(self.folder / METADATA):  # earlier versions did not count `cpu_seconds`
            return Counters(**{"cpu_seconds": None, **self._read_metadata()["counters"]})

    @property
    def roles(self) -> list[str]:
        """Return the names of the roles."""
        return list(self._read_metadata()["roles"])

    @property
    def n_learners(self) -> int:
        """Return the number of learners of the run."""
        return self._read_metadata().get("learners", 1)

    def lanes(self, role: str) -> tuple[int, int]:
        """Return the number of lanes of a role, and the number of its initial lanes."""
        with _convert_errors(self.folder / METADATA):
            metadata = self._read_experience()["roles"][role]
            return metadata["lanes"], metadata["initial_lanes"]

    def capacity(self, role: str) -> int | None:
        """Return the capacity of the replay of a role; None if the role has no replay."""
        return self._read_experience()["roles"][role].get("capacity")

    def weights(self, role: str) -> State:
        """Return parameters, target networks and statistics of a role, all of which are finite."""
        if role in self._weights:
            return self._weights[role]
        state = self._load_torch(role, WEIGHTS)
        if not all(tensor.isfinite().all() for kind in state.values() for tensor in kind.values()):
            raise CheckpointError(
                f"{self._role_folder(role) / WEIGHTS} holds NaN or infinity: take an earlier checkpoint (to play: "
                f"--ckpt; to resume: move {self.folder} out of the run folder)"
            )
        return state

    def learner_state(self, role: str) -> dict[str, Any]:
        """Return the state of the learner of a role."""
        return self._load_torch(role, LEARNER)

    def check(self, name: str | None = None) -> None:
        """Compare the digests of counters.json and of the files named `name`, or of every file, with the manifest."""
        Manifest.read(self.folder).check(*([METADATA, name] if name else []))

    def restore_learner(self, role: str, learner: Learner) -> None:
        """Restore the weights and the learner of a role.

        The learner of the first role counts the rows that the checkpoint has dropped, so that schedules end at
        `max_step`.
        """
        with _convert_errors(self._role_folder(role)):
            learner.parameters.load(self.weights(role))
            state = self.learner_state(role)
            if role == self.roles[0] and ACTOR not in Manifest.read(self.folder).digests:
                state["seen"] += self.counters.env_steps - sum(self.learner_state(role)["seen"] for role in self.roles)
            learner.restore(state)

    def restore_experience(self, role: str, components: AgentComponents) -> None:
        """Restore the generators, the schedule and the replay of a role."""
        saved = self._read_experience()["roles"][role]
        with _convert_errors(self._role_folder(role)):
            for name, rng in list_generators(components).items():
                rng.bit_generator.state = saved["generators"][name]
            components.scheduler.restore(saved["scheduler"])
            if components.explorer and saved.get("explorer"):  # a run may be resumed with another explorer
                components.explorer.restore(saved["explorer"])
            replay = components.scheduler.replay
            if replay and (arrays := self._load_arrays(f"{quote(role, safe='')}/{REPLAY}")) is not None:
                replay.restore(arrays)
            components.learner.restore_own(self._load_torch(role, LEARNER, make_prefix(self.worker)))

    def restore_process(self, actor: Stateful) -> None:
        """Restore the actor, after the components of its roles, and then the generators of the process.

        The actor keeps its new episodes if the checkpoint has no state of the environments.
        """
        with _convert_errors(self.folder):
            if (arrays := self._load_arrays(ACTOR)) is not None:
                actor.restore(arrays)
            set_process_state(self._read_experience()["generators"])

    def restore_states(self, states: Mapping[str, Stateful]) -> None:
        """Restore parts of a run, by name; a part without a state in the checkpoint is unchanged."""
        saved = self._read_metadata()["states"]
        with _convert_errors(self.folder):
            for name, part in states.items():
                if name in saved:
                    part.restore(saved[name])

    @property
    def has_experience(self) -> bool:
        """Return whether the checkpoint has experience of the worker."""
        return self.worker == 0 or str(self.worker) in self._read_metadata().get("workers", {})

    def _role_folder(self, role: str) -> Path:
        return self.folder / quote(role, safe="")

    def _read_experience(self) -> dict[str, Any]:
        """Return what counters.json has about the roles and generators of the worker."""
        metadata = self._read_metadata()
        return metadata if self.worker == 0 else metadata["workers"][str(self.worker)]

    def _read_metadata(self) -> dict[str, Any]:
        return self._metadata or read_part(self.folder / METADATA, dict[str, Any], allow_nan=True)

    def _load_arrays(self, name: str) -> dict[str, np.ndarray] | None:
        """Return the arrays of a file of the worker; None if the checkpoint does not have it."""
        name = f"{make_prefix(self.worker)}{name}"
        if name not in Manifest.read(self.folder).digests:
            return None
        with np.load(self.folder / name, allow_pickle=False) as arrays:
            return dict(arrays)

    def _load_torch(self, role: str, name: str, prefix: str = "") -> dict[str, Any]:
        path = self.folder / prefix / quote(role, safe="") / name
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises many kinds of errors for a damaged file
            raise CheckpointError(f"{path}: {summarize_error(error)}") from error


def make_prefix(worker: int) -> str:
    """Return the folder of a worker's files in a checkpoint, with a slash; empty for worker 0."""
    return f"worker-{worker}/" if worker else ""


@contextmanager
def _convert_errors(place: Path) -> Iterator[None]:
    """Raise CheckpointError for a file that cannot be read, or a state that does not fit."""
    try:
        yield
    except CheckpointError:
        raise
    except READ_ERRORS as error:
        raise CheckpointError(f"{place}: {summarize_error(error)}") from error


def write_all(training: TrainingComponents, actor: Stateful, manifest: Manifest) -> dict[str, Any]:
    """Write the learners and the experience of a run in one process. Return what counters.json has about them."""
    for role, components in training.by_role.items():
        write_weights(manifest, role, components.learner)
        write_learner(manifest, role, components.learner)
    return write_experience(training, actor, manifest)


def write_weights(manifest: Manifest, role: str, learner: Learner) -> None:
    """Write the weights of a role."""
    write_tensors(manifest, f"{quote(role, safe='')}/{WEIGHTS}", learner.parameters.state())


def write_learner(manifest: Manifest, role: str, learner: Learner) -> None:
    """Write the learner of a role, without its weights."""
    write_tensors(manifest, f"{quote(role, safe='')}/{LEARNER}", learner.state())


def write_experience(
    training: TrainingComponents, actor: Stateful, manifest: Manifest, worker: int = 0
) -> dict[str, Any]:
    """Write the replays of all roles and the state of the actor. Return what counters.json has about them.

    For a worker or learner above 0, also write the states of learners that processes with shared parameters do not
    share.
    """
    prefix = make_prefix(worker)
    for role, components in training.by_role.items():
        if replay := components.scheduler.replay:
            _write_arrays(manifest, f"{prefix}{quote(role, safe='')}/{REPLAY}", replay.state())
    if (state := actor.state()) is not None:
        _write_arrays(manifest, f"{prefix}{ACTOR}", state)
    if worker:
        for role, components in training.by_role.items():
            write_tensors(manifest, f"{prefix}{quote(role, safe='')}/{LEARNER}", components.learner.own_state())
    return describe_all(training)


def describe_all(training: TrainingComponents) -> dict[str, Any]:
    """Return what counters.json has about the roles and about the generators of this process."""
    roles = {}
    for role, components in training.by_role.items():
        scheduler, explorer = components.scheduler, components.explorer
        roles[role] = {
            "generators": {name: rng.bit_generator.state for name, rng in list_generators(components).items()},
            "scheduler": scheduler.state(),
            "explorer": explorer.state() if explorer else {},
            "lanes": components.role.lanes,
            "initial_lanes": scheduler.initial_lanes,
            **({"capacity": scheduler.replay.capacity} if scheduler.replay else {}),
        }
    return {"roles": roles, "generators": get_process_state()}


def _write_arrays(manifest: Manifest, name: str, arrays: Mapping[str, np.ndarray]) -> None:
    with manifest.open_file(name) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # of `allow_pickle`


def write_tensors(manifest: Manifest, name: str, state: Mapping[str, Any]) -> None:
    """Write named tensors to a file of a checkpoint."""
    memory = io.BytesIO()  # since torch raises no OSError if the disk is full
    torch.save(state, memory)
    with manifest.open_file(name) as file:
        file.write(memory.getbuffer())


def list_generators(components: AgentComponents) -> dict[str, np.random.Generator]:
    """Return the generators of the components of a role, by name."""
    generators = {"agent": components.agent.rng, "scheduler": components.scheduler.rng}
    if replay := components.scheduler.replay:
        generators["replay"] = replay.rng
    return generators


def get_process_state() -> dict[str, Any]:
    """Return the states of the generators of the process (Python, numpy, torch), in values of JSON."""
    numpy = np.random.get_state(legacy=False)
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return {
        "python": random.getstate(),
        "numpy": {**numpy, "state": {**numpy["state"], "key": numpy["state"]["key"].tolist()}},
        "torch": bytes(torch.get_rng_state().numpy()).hex(),
        "cuda": [bytes(state.numpy()).hex() for state in devices],
    }


def set_process_state(state: Mapping[str, Any]) -> None:
    """Restore what `get_process_state` returned; the states of missing cuda devices are ignored."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    np.random.set_state(state["numpy"])
    torch.set_rng_state(torch.frombuffer(bytearray.fromhex(state["torch"]), dtype=torch.uint8))
    for device, saved in enumerate(state["cuda"][: torch.cuda.device_count()]):
        torch.cuda.set_rng_state(torch.frombuffer(bytearray.fromhex(saved), dtype=torch.uint8), device)


@contextmanager
def preserve_process_state() -> Iterator[None]:
    """Restore the states of the generators of the process after the block."""
    state = get_process_state()
    try:
        yield
    finally:
        set_process_state(state)
