"""Writing of files that are complete even if the process or the machine crashes, and never through a link.

A folder that comes from another person may have a link at any name, so that a file outside of the folder would be
overwritten. A new file is therefore created where no file is, and takes the place of a link by a rename.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

DAMAGED_PREFIX = "damaged-"  # prefix of the new name of a damaged file or folder
UNFINISHED_SUFFIX = ".new"  # suffix of a file that is being written


@contextmanager
def open_synced(path: Path) -> Iterator[BinaryIO]:
    """Yield a new file, which is on the disk when the block ends; a file or a link of this name is removed first."""
    path.unlink(missing_ok=True)
    with path.open("xb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def open_replacement(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that takes the place of `path` when the block ends, and is removed if the block raises an error.

    After an interruption, the file at `path` has the old content or the new one.
    """
    temporary = path.with_name(f"{path.name}{UNFINISHED_SUFFIX}")
    try:
        with open_synced(temporary) as file:
            yield file
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def replace_text(path: Path, text: str) -> None:
    """Replace the text of a file. After an interruption it has the old text or the new one."""
    replace_bytes(path, text.encode())


def replace_bytes(path: Path, content: bytes | memoryview) -> None:
    """Replace the content of a file. After an interruption it has the old content or the new one."""
    with open_replacement(path) as file:
        file.write(content)


def set_aside(path: Path) -> Path:
    """Rename a damaged file or folder, replacing an earlier one; return its new path."""
    return path.replace(_clear_aside(path))


def copy_aside(path: Path) -> Path:
    """Copy a damaged file, replacing an earlier copy, or rename a folder in its place; return the new path."""
    return set_aside(path) if path.is_dir() else Path(shutil.copy2(path, _clear_aside(path)))


def _clear_aside(path: Path) -> Path:
    """Return the path to which a damaged file or folder is set aside, where nothing exists."""
    target = path.with_name(f"{DAMAGED_PREFIX}{path.name}")
    if target.is_dir():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)
    return target


def resolve_inside(folder: Path, path: Path) -> Path:
    """Return `path`, relative to `folder`, with all links resolved. Raises ValueError if it is outside of `folder`."""
    resolved = (folder / path).resolve()
    if not resolved.is_relative_to(folder.resolve()):
        raise ValueError(f"{resolved} is outside of {folder}")
    return resolved


def sync_folder(folder: Path) -> None:
    """Write the names of the files in `folder` to the disk."""
    if os.name == "nt":  # Windows opens no folders, and has a journal of names
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
