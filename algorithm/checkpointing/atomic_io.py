"""Files that survive a crash: on the disk whole, or not there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

DAMAGED = "damaged-"  # prefix of the name of what is set aside


@contextmanager
def written(path: Path) -> Iterator[BinaryIO]:
    """A new file to write into, which is on the disk when the block ends."""
    with path.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, text: str) -> None:
    """Give `path` this text. Whenever that is interrupted, it has the old text or the new."""
    fresh = path.with_name(f"{path.name}.new")
    with written(fresh) as file:
        file.write(text.encode())
    fresh.replace(path)
    settle(path.parent)


def set_aside(path: Path) -> Path:
    """Rename a damaged file or folder, replacing an earlier one; return its new path."""
    aside = path.with_name(f"{DAMAGED}{path.name}")
    if aside.is_dir():
        shutil.rmtree(aside)
    return path.replace(aside)


def resolve_inside(folder: Path, path: Path) -> Path:
    """Return `path`, relative to `folder`, with all links resolved. Raises ValueError if it is outside of `folder`."""
    place = (folder / path).resolve()
    if not place.is_relative_to(folder.resolve()):
        raise ValueError(f"{place} is outside of {folder}")
    return place


def settle(folder: Path) -> None:
    """Bring the names in `folder` to the disk."""
    if os.name == "nt":  # which opens no folders, and keeps names by its own journal
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
