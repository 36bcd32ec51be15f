"""Files that survive a crash: on the disk whole, or not there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

DAMAGED_PREFIX = "damaged-"  # prefix of the name of what is set aside


@contextmanager
def open_synced(path: Path) -> Iterator[BinaryIO]:
    """A new file to write into, which is on the disk when the block ends."""
    with path.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def replace_text(path: Path, text: str) -> None:
    """Give `path` this text. Whenever that is interrupted, it has the old text or the new."""
    temporary = path.with_name(f"{path.name}.new")
    with open_synced(temporary) as file:
        file.write(text.encode())
    temporary.replace(path)
    sync_folder(path.parent)


def set_aside(path: Path) -> Path:
    """Rename a damaged file or folder, replacing an earlier one; return its new path."""
    target = path.with_name(f"{DAMAGED_PREFIX}{path.name}")
    if target.is_dir():
        shutil.rmtree(target)
    return path.replace(target)


def resolve_inside(folder: Path, path: Path) -> Path:
    """Return `path`, relative to `folder`, with all links resolved. Raises ValueError if it is outside of `folder`."""
    resolved = (folder / path).resolve()
    if not resolved.is_relative_to(folder.resolve()):
        raise ValueError(f"{resolved} is outside of {folder}")
    return resolved


def sync_folder(folder: Path) -> None:
    """Bring the names in `folder` to the disk."""
    if os.name == "nt":  # which opens no folders, and keeps names by its own journal
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
