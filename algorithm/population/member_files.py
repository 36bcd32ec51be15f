"""The files of a member as messages between the main process and the machine that trains the member."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from algorithm.atomic_io import UNFINISHED_SUFFIX, resolve_inside
from algorithm.checkpointing.manifest import (
    MANIFEST,
    CheckpointError,
    Manifest,
    PackedFolder,
    pack_folder,
    unpack_folder,
)
from algorithm.parts.lock import LOCK_FILE
from algorithm.parts.run_folder import RunFolder

CODE_SUFFIX = ".py"
ARRIVING = "arriving"  # folder in a run folder with files that are being received
Stamp = tuple[int, int, int]  # index node, size and time of the last change of a file


@dataclass(frozen=True, kw_only=True)
class MemberFiles:
    """Files of a run folder.

    Attributes:
        checkpoints: checkpoints by their env steps, oldest first.
        others: all other files: settings, metrics, logs, results; also code, which the main process does not accept.
    """

    checkpoints: Mapping[int, PackedFolder]
    others: PackedFolder

    @property
    def has_code(self) -> bool:
        """Return whether there are files with code."""
        return any(map(_is_code, self.others))


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
    newest, best = store.latest(log), None
    with suppress(CheckpointError):  # best.json is damaged, which the run reports
        best = store.best.checkpoint
    return _pack(folder, sorted({each.folder.name for each in (newest, best) if each}), _list_files(folder))


def write_member(folder: RunFolder, files: MemberFiles, keep: int) -> None:
    """Write files into a run folder.

    Checkpoints are written first: after an interruption the folder is as if the run had been killed.

    Args:
        folder: the run folder.
        files: the files.
        keep: the number of checkpoints that the folder keeps; all of `files` are kept.

    Raises:
        CheckpointError: a file was damaged on its way.
        OSError: a file cannot be written.
        ValueError: a path is outside of the folder.
    """
    store = folder.checkpoints(max(keep, len(files.checkpoints)))  # one of these may be the best, as a record states
    for env_steps, packed in files.checkpoints.items():
        with store.create(env_steps) as manifest:
            unpack_folder(packed, manifest)
    arriving = Manifest(folder.path / ARRIVING)
    try:
        unpack_folder(files.others, arriving)
        for name in files.others:
            path = resolve_inside(folder.path, Path(name))
            path.parent.mkdir(parents=True, exist_ok=True)
            (arriving.folder / name).replace(path)
    finally:
        shutil.rmtree(arriving.folder, ignore_errors=True)


class ChangedFiles:
    """The files of a run folder that have changed since they were last sent.

    Args:
        folder: the run folder, all of whose files are known to the receiver.
    """

    def __init__(self, folder: RunFolder):
        self._folder = folder
        self._sent = _list_files(folder) | _list_checkpoints(folder)

    def has_checkpoint(self) -> bool:
        """Return whether there is a checkpoint that has not been sent."""
        return bool(self._find_changed(_list_checkpoints(self._folder)))

    def take(self) -> MemberFiles:
        """Return all changes, without code; they then count as sent.

        The run may write at the same time. A checkpoint that is removed meanwhile is left out.
        """
        checkpoints = _list_checkpoints(self._folder)
        changed_checkpoints = self._find_changed(checkpoints)
        files = _list_files(self._folder)
        changed = [name for name in self._find_changed(files) if not _is_code(name)]
        self._sent |= files | checkpoints
        return _pack(self._folder, changed_checkpoints, changed)

    def _find_changed(self, stamps: Mapping[str, Stamp]) -> list[str]:
        return [name for name, stamp in stamps.items() if self._sent.get(name) != stamp]


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
                    stamps[path.relative_to(folder.path).as_posix()] = _get_stamp(path)
    return stamps


def _list_checkpoints(folder: RunFolder) -> dict[str, Stamp]:
    """Return the stamps of the manifests of all checkpoints by the names of their folders, oldest first."""
    stamps = {}
    for checkpoint in folder.checkpoints(keep=1).list_all():
        with suppress(FileNotFoundError):
            stamps[checkpoint.folder.name] = _get_stamp(checkpoint.folder / MANIFEST)
    return stamps


def _get_stamp(path: Path) -> Stamp:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _pack(folder: RunFolder, checkpoints: Iterable[str], others: Iterable[str]) -> MemberFiles:
    """Return files as a message, without those that are removed meanwhile; checkpoints are the names of folders."""
    store = folder.checkpoints(keep=1)
    packed: dict[int, PackedFolder] = {}
    rest: PackedFolder = {}
    for name in checkpoints:
        with suppress(CheckpointError, FileNotFoundError):
            path = store.get_folder(int(name))
            digests = Manifest.read(path).digests
            packed[int(name)] = pack_folder(path, digests, digests)
    for name in others:
        with suppress(FileNotFoundError):
            rest |= pack_folder(folder.path, [name])
    return MemberFiles(checkpoints=packed, others=rest)
