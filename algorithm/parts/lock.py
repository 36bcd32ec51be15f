"""Exclusive use of folders: the lock of a run folder, links, and temporary folders."""

from __future__ import annotations

import atexit
import errno
import logging
import os
import shutil
import stat
import sys
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

from algorithm.atomic_io import resolve_inside
from algorithm.errors import UserError

LOCK_FILE = ".lock"
LOG = logging.getLogger(__name__)
UNSUPPORTED_ERRORS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
BUSY_ERRORS = (errno.EAGAIN, errno.EACCES, errno.EDEADLK)  # raised if another process holds the lock
MAX_DIGITS = 20  # of a process id
STARTING_SECONDS = 60.0  # a younger temporary folder may belong to a process that is about to lock it
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)  # Windows has no such flag

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
        except (ImportError, OSError) as error:  # the former on a system without POSIX
            if isinstance(error, OSError) and error.errno not in UNSUPPORTED_ERRORS:
                raise
            _warn_without_locks()


@cache
def _warn_without_locks() -> None:
    """Warn, once in a process, that nothing prevents two processes from training in one folder."""
    LOG.warning("this system, or its file system, has no file locks: do not train in a folder with two processes")


def _open_lock(path: Path, flags: int) -> tuple[int, bytes]:
    """Return a descriptor of a lock, and its content: the id of the process that holds it or has held it.

    Raises:
        UserError: it is a link, or not a file with a process id; another file would be overwritten.
        OSError: it cannot be opened.
    """
    no_lock = UserError(f"{path} is not a lock, which is a file that contains the id of a process: remove it")
    if path.is_symlink():
        raise no_lock
    descriptor = os.open(path, flags | NO_FOLLOW, 0o666)  # the flag, since it may have become a link meanwhile
    content = os.read(descriptor, MAX_DIGITS + 1) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b"no file"
    if content and not (content.isdigit() and len(content) <= MAX_DIGITS):  # it may be a second name of another file
        os.close(descriptor)
        raise no_lock
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor, content


class FolderLock:
    """A lock that one process at a time holds on a folder, within a `with` block.

    The operating system releases it when the process ends. Entering the block raises UserError at once if another
    process holds the lock, with the `name` of the folder.
    """

    def __init__(self, folder: Path, name: str):
        self.path = folder / LOCK_FILE
        self.name = name

    def __enter__(self) -> FolderLock:
        descriptor, holder = _open_lock(self.path, os.O_RDWR | os.O_CREAT)
        try:
            _lock(descriptor)
            os.ftruncate(descriptor, 0)
            os.write(descriptor, str(os.getpid()).encode())
        except OSError as error:
            os.close(descriptor)
            if error.errno not in BUSY_ERRORS:
                raise
            raise UserError(
                f"run {self.name} is in training in process {holder.decode() or 'unknown'}: "
                "end that process first, or give another name with -n"
            ) from error
        self._descriptor = descriptor
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def is_held_elsewhere(self) -> bool:
        """Return whether another process holds the lock."""
        try:
            descriptor, holder = _open_lock(self.path, os.O_RDWR)
        except (OSError, UserError):  # no process has ever held it, or it cannot be read
            return False
        try:
            _lock(descriptor)
        except OSError as error:
            return error.errno in BUSY_ERRORS and holder != str(os.getpid()).encode()
        finally:
            os.close(descriptor)  # releases the lock
        return False


def check_links(folder: Path) -> None:
    """Raise UserError for a link out of a folder, by which an appended line would be written elsewhere.

    Code is only read, and checked when it is.
    """
    for path in sorted(path for path in folder.iterdir() if path.suffix != ".py"):
        try:
            resolve_inside(folder, Path(path.name))
        except ValueError as error:
            raise UserError(
                f"{path} is a link to {path.resolve()}, and a run writes only into its own folder: move there what the "
                "link leads to, or make the whole run folder a link"
            ) from error


def make_temporary_folder(prefix: str) -> Path:
    """Create a temporary folder that is locked by this process, and removed when it exits.

    A process that is killed cannot remove its folder. Therefore each process first removes the folders of killed ones
    of its user on its machine, whose locks are free.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(UserError, OSError):  # another process holds the lock, or may remove the folder
            if _is_private(folder) and (folder / LOCK_FILE).stat().st_mtime < time.time() - STARTING_SECONDS:
                with FolderLock(folder, str(folder)):
                    shutil.rmtree(folder, ignore_errors=True)
    path = Path(tempfile.mkdtemp(prefix=prefix))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    FolderLock(path, str(path)).__enter__()  # until the process ends
    return path


def _is_private(folder: Path) -> bool:
    """Return whether only this user can have written into a folder, as `mkdtemp` makes it; the place may be shared."""
    status = folder.lstat()
    is_shared = hasattr(os, "geteuid")  # on Windows each user has a folder for temporary files
    is_own = not is_shared or (status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) == 0o700)
    return is_own and stat.S_ISDIR(status.st_mode)
