"""Exclusive use of a run folder: the lock of the process that trains in it, and the replacement of an old run."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

from algorithm.errors import UserError

LOCK_FILE = ".lock"
LOG = logging.getLogger(__name__)
UNSUPPORTED_ERRORS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
BUSY_ERRORS = (errno.EAGAIN, errno.EACCES, errno.EDEADLK)  # raised if another process holds the lock

if sys.platform == "win32":
    import msvcrt

    # Position of the locked byte, which other processes cannot read; the process id is at the start of the file.
    LOCK_OFFSET = 2**30

    def _lock(descriptor: int) -> None:
        os.lseek(descriptor, LOCK_OFFSET, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        os.lseek(descriptor, 0, os.SEEK_SET)
else:

    def _lock(descriptor: int) -> None:
        try:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # of a system without POSIX
            _warn_without_locks()
        except OSError as error:
            if error.errno not in UNSUPPORTED_ERRORS:
                raise
            _warn_without_locks()


@cache
def _warn_without_locks() -> None:
    """Warn, once in a process, that nothing prevents two processes from training in one folder."""
    LOG.warning("this system, or its file system, has no file locks: do not train in a folder with two processes")


class FolderLock:
    """A lock that one process at a time holds on a folder, within a `with` block.

    The operating system releases it when the process ends. Entering the block raises UserError at once if another
    process holds the lock.

    Args:
        folder: Folder to lock.
        name: Name of the folder in messages.
    """

    def __init__(self, folder: Path, name: str):
        self.path = folder / LOCK_FILE
        self.name = name

    def __enter__(self) -> FolderLock:
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(descriptor)
            os.ftruncate(descriptor, 0)
            os.write(descriptor, str(os.getpid()).encode())
        except OSError as error:
            holder = os.read(descriptor, 20).decode(errors="replace")
            os.close(descriptor)
            if error.errno not in BUSY_ERRORS:
                raise
            raise UserError(
                f"run {self.name} is in training in process {holder or 'unknown'}: "
                "end that process first, or give another name with -n"
            ) from error
        self._descriptor = descriptor
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def is_held_elsewhere(self) -> bool:
        """Return whether another process holds the lock."""
        try:
            descriptor = os.open(self.path, os.O_RDWR)
        except OSError:  # no process has ever held it, or it cannot be read
            return False
        try:
            holder = os.read(descriptor, 20)
            _lock(descriptor)
        except OSError as error:
            return error.errno in BUSY_ERRORS and holder != str(os.getpid()).encode()
        finally:
            os.close(descriptor)  # releases the lock
        return False


class RunReplacement:
    """The replacement of a run, which restores the old run if the new one fails before it has learned.

    Args:
        path: Folder of the run.
        root: Folder of all runs, which is never removed.
    """

    def __init__(self, path: Path, root: Path):
        self.path, self.root = path, root
        self.backup = path.with_name(f".{path.name}")  # the name of a run never starts with a dot

    @property
    def has_backup(self) -> bool:
        """Return whether the old run is set aside."""
        return self.backup.exists()

    def set_aside(self) -> None:
        """Rename the folder of the old run."""
        self.discard()
        self.path.rename(self.backup)

    def discard(self) -> None:
        """Remove the old run."""
        if self.has_backup:
            shutil.rmtree(self.backup)

    def restore(self) -> None:
        """Remove the new run, and put back the old one; parent folders below `root` that are empty are removed."""
        shutil.rmtree(self.path)
        if self.has_backup:
            self.backup.rename(self.path)
        with suppress(OSError):  # raised for the first folder that is not empty
            for parent in self.path.parents:
                if self.root in (parent, *parent.parents):
                    parent.rmdir()
