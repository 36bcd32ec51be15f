"""The lock of a run folder: the operating system releases it when the process that holds it ends."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from algorithm.errors import UserError

LOCK_FILE = ".lock"
BUSY_ERRORS = (errno.EAGAIN, errno.EACCES, errno.EDEADLK)  # if another process holds the lock

if os.name == "nt":
    import msvcrt

    LOCK_OFFSET = 2**30  # position of the locked byte, which others cannot read; the process number is at the start

    def _lock(descriptor: int) -> None:
        os.lseek(descriptor, LOCK_OFFSET, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        os.lseek(descriptor, 0, os.SEEK_SET)
else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


class FolderLock:
    """A lock that one process at a time holds on a folder, within a `with` block.

    `name` is the folder in messages. Entering raises UserError at once if another process holds the lock.
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
                "end that one first, or give another name with -n"
            ) from error
        self._descriptor = descriptor
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
