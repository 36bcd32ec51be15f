"""The files of a member as messages between the main process and the machine that trains the member."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from algorithm.atomic_io import UNFINISHED_SUFFIX, replace_bytes, resolve_inside
from algorithm.checkpointing.checkpoint import Checkpoint
from algorithm.checkpointing.manifest import MANIFEST, CheckpointError
from algorithm.checkpointing.store import CheckpointStore
from algorithm.checkpointing.transfer import PackedCheckpoint, pack_checkpoint, unpack_checkpoint
from algorithm.parts.lock import LOCK_FILE
from algorithm.parts.run_folder import RunFolder

CODE_SUFFIX = ".py"
Stamp = tuple[int, int, int]  # index node, size and time of the last change of a file


@dataclass(frozen=True, kw_only=True)
class MemberFiles:
    """Files of a run folder. The content of each is an array of bytes, which Ray sends without a copy.

    Attributes:
        checkpoints: checkpoints, oldest first.
        records: all other files without code, by path: settings, metrics, logs, results.
        code: files with code, by path; the main process sends them, and accepts none.
    """

    checkpoints: Sequence[PackedCheckpoint]
    records: Mapping[str, np.ndarray]
    code: Mapping[str, np.ndarray]


def read_member(folder: RunFolder, keep: int, log: Callable[[str], None]) -> MemberFiles:
    """Return the files from which a member continues on another machine: its newest checkpoint, the best, and the rest.

    Args:
        folder: the run folder.
        keep: the number of checkpoints that the run keeps.
        log: receives a line for each damaged checkpoint.

    Raises:
        CheckpointError: no checkpoint can be read.
    """
    store = folder.checkpoints(keep)
    needed = {each.folder: each for each in (_find_best(store), store.latest(log)) if each}
    files = dict(_read_files(folder, _list_files(folder)))
    return MemberFiles(
        checkpoints=[pack_checkpoint(needed[path]) for path in sorted(needed)],
        records={name: content for name, content in files.items() if not _is_code(name)},
        code={name: content for name, content in files.items() if _is_code(name)},
    )


def write_member(folder: RunFolder, files: MemberFiles, keep: int) -> None:
    """Write files into a run folder.

    Checkpoints are written first: after an interruption the folder is as if the run had been killed.

    Args:
        folder: the run folder.
        files: the files.
        keep: the number of checkpoints that the folder keeps; all of `files` are kept.

    Raises:
        CheckpointError: a checkpoint was damaged on its way.
        OSError: a file cannot be written.
        ValueError: a path is outside of the folder.
    """
    store = folder.checkpoints(max(keep, len(files.checkpoints)))  # one of these may be the best, as a record states
    for checkpoint in files.checkpoints:
        unpack_checkpoint(checkpoint, store)
    for name, content in {**files.records, **files.code}.items():
        path = resolve_inside(folder.path, Path(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_bytes(path, content.data)


class ChangedFiles:
    """The files of a run folder that have changed since they were last sent.

    Args:
        folder: the run folder, all of whose files are known to the receiver.
    """

    def __init__(self, folder: RunFolder):
        self._folder = folder
        self._stamps = _list_files(folder)
        self._manifests: dict[Path, bytes] = {}
        self._manifests = {checkpoint.folder: manifest for checkpoint, manifest in self._list_new()}

    def has_checkpoint(self) -> bool:
        """Return whether there is a checkpoint that has not been sent."""
        return any(True for _ in self._list_new())

    def take(self) -> MemberFiles:
        """Return all changes, without code; they then count as sent.

        The run may write at the same time. A checkpoint that is removed meanwhile is left out.
        """
        checkpoints = []
        for checkpoint, manifest in self._list_new():
            with suppress(CheckpointError, FileNotFoundError):
                checkpoints.append(pack_checkpoint(checkpoint))
            self._manifests[checkpoint.folder] = manifest
        stamps = {name: stamp for name, stamp in _list_files(self._folder).items() if not _is_code(name)}
        changed = [name for name, stamp in stamps.items() if self._stamps.get(name) != stamp]
        self._stamps |= stamps
        return MemberFiles(checkpoints=checkpoints, records=dict(_read_files(self._folder, changed)), code={})

    def _list_new(self) -> Iterator[tuple[Checkpoint, bytes]]:
        """Yield each checkpoint that has not been sent, oldest first, with its manifest."""
        for checkpoint in self._folder.checkpoints(keep=1).list_all():
            with suppress(FileNotFoundError):
                manifest = (checkpoint.folder / MANIFEST).read_bytes()
                if self._manifests.get(checkpoint.folder) != manifest:
                    yield checkpoint, manifest


def _find_best(store: CheckpointStore) -> Checkpoint | None:
    """Return the best checkpoint; None if there is none, or best.json is damaged, which the run reports."""
    try:
        return store.best.checkpoint
    except CheckpointError:
        return None


def _is_code(name: str) -> bool:
    return name.endswith(CODE_SUFFIX)


def _list_files(folder: RunFolder) -> dict[str, Stamp]:
    """Return the stamps of all files of a run by path, without checkpoints, locks and files that are being written."""
    checkpoints = folder.checkpoints(keep=1).folder
    stamps = {}
    for parent, folders, names in os.walk(folder.path):  # which skips folders that are removed meanwhile
        folders[:] = [] if Path(parent) == checkpoints else sorted(folders)
        for path in (Path(parent, name) for name in sorted(names)):
            is_temporary = path.name == LOCK_FILE or path.suffix == UNFINISHED_SUFFIX
            with suppress(FileNotFoundError):
                if path.is_file() and not (path.is_symlink() or is_temporary):
                    status = path.stat()
                    name = path.relative_to(folder.path).as_posix()
                    stamps[name] = (status.st_ino, status.st_size, status.st_mtime_ns)
    return stamps


def _read_files(folder: RunFolder, names: Iterable[str]) -> Iterator[tuple[str, np.ndarray]]:
    for name in names:
        with suppress(FileNotFoundError):  # removed meanwhile
            yield name, np.fromfile(folder.path / name, np.uint8)
