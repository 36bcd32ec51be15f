"""A folder for the files of one process, which is removed with it."""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from algorithm.errors import UserError
from algorithm.parts.lock import LOCK_FILE, FolderLock

STARTING_SECONDS = 60.0  # a younger folder may belong to a process that is about to lock it


def make_temporary_folder(prefix: str) -> Path:
    """Create a temporary folder that is locked by this process, and removed when it exits.

    A process that is killed cannot remove its folder. Therefore each process first removes the folders of killed ones
    of its user on its machine, whose locks are free.

    Args:
        prefix: start of the name of such folders.
    """
    _remove_abandoned_folders(prefix)
    path = Path(tempfile.mkdtemp(prefix=prefix))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    FolderLock(path, str(path)).__enter__()  # until the process ends
    return path


def _remove_abandoned_folders(prefix: str) -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(UserError, OSError):  # another process holds the lock, or may remove the folder
            if _is_private(folder) and (folder / LOCK_FILE).stat().st_mtime < time.time() - STARTING_SECONDS:
                with FolderLock(folder, str(folder)):
                    shutil.rmtree(folder, ignore_errors=True)


def _is_private(folder: Path) -> bool:
    """Return whether only this user can have written into a folder, as `mkdtemp` makes it; the place may be shared."""
    status = folder.lstat()
    if not hasattr(os, "geteuid"):  # Windows, where each user has a folder for temporary files
        return stat.S_ISDIR(status.st_mode)
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) == 0o700
