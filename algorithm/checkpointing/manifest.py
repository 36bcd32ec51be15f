"""The digests of files: the manifest of a checkpoint, by which damage is detected, and files between machines."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, TypeVar

import numpy as np

from algorithm.atomic_io import open_synced, resolve_inside, sync_folder
from algorithm.records_io import DIGEST_BYTES, OpenRecord, RecordError, read_json

MANIFEST = "manifest.json"
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
