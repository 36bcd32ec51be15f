"""Processes that this package starts: how they are spawned, their signals and their standard streams."""

from __future__ import annotations

import multiprocessing
import multiprocessing.context
import os
import signal
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any, TextIO

STREAM_NAMES = ("stdout", "stderr")
CONTEXT_NAME = "spawn_with_parent"  # of `PROCESSES`, for packages that take the name of a context
# What a spawned process executes before it imports anything else: it requests SIGKILL (9) for the end of its parent
# (PR_SET_PDEATHSIG is 1), and ends if that has happened already. An expression of the standard library, since
# sys.path is not set yet.
DIE_WITH_PARENT = (
    "(__import__('ctypes').CDLL(None).prctl(1, 9), __import__('os').getppid() == {parent} or __import__('os')._exit(1))"
)


class _ProcessName(str):
    """The name of a process, whose pickle makes the process that reads it end with its parent.

    `multiprocessing` sends the name first, and then what makes the process import modules, which may take 20 seconds.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, (f"({DIE_WITH_PARENT.format(parent=os.getpid())}, {str(self)!r})[-1]",)


class _BoundProcess(SpawnProcess):
    """A spawned process that the system kills when its parent ends in any way (Linux)."""

    @staticmethod
    def _Popen(process: Any) -> Any:  # noqa: N802  # as multiprocessing names it
        if sys.platform == "linux":
            process.name = _ProcessName(process.name)
        return SpawnProcess._Popen(process)


class _BoundContext(SpawnContext):
    """A context whose processes end with their parent."""

    Process = _BoundProcess


PROCESSES = _BoundContext()  # all processes are started with it: a fork would copy the locks of threads
multiprocessing.context._concrete_contexts[CONTEXT_NAME] = PROCESSES  # type: ignore[attr-defined]


class FaultTolerantStream:
    """A text stream that drops text that cannot be written, instead of raising OSError.

    Writing fails when the reader has exited (`| head -1`), when the terminal was closed, and when the disk is full.
    Characters that the encoding of the stream does not have are written as escape codes.
    """

    def __init__(self, stream: TextIO):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Unpickle as the standard stream of the same name in the receiving process."""
        name = next(name for name in STREAM_NAMES if getattr(sys, name) is self)
        return getattr, (sys, name)

    def write(self, text: str) -> int:
        """Write `text` if possible and return its length."""
        with suppress(OSError):
            try:
                self._stream.write(text)
            except UnicodeEncodeError:
                encoding = self._stream.encoding
                self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def flush(self) -> None:
        """Flush the stream if possible."""
        with suppress(OSError):
            self._stream.flush()

    def close(self) -> None:
        """Close the stream."""
        with suppress(OSError):
            self._stream.close()


def open_closed_streams() -> None:
    """Replace each standard stream that was closed before this process began by one that drops its text.

    Its descriptor is taken, too: otherwise the next file that is opened would get it, with what native code prints.
    """
    for number, name in enumerate(STREAM_NAMES, 1):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.dup2(descriptor, number)
            stream = os.fdopen(number, "w", encoding="utf-8")
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def tolerate_closed_streams() -> None:
    """Make the standard streams of this process fault-tolerant, except those that a program has replaced."""
    for name in STREAM_NAMES:
        stream = getattr(sys, name)
        if stream is not None and stream is getattr(sys, f"__{name}__"):
            setattr(sys, name, FaultTolerantStream(stream))


def prepare_worker() -> None:
    """Ignore Ctrl-C and hang-ups, which the main process handles, and make the standard streams fault-tolerant."""
    for name in ("SIGINT", "SIGHUP"):  # Windows has no SIGHUP
        if number := getattr(signal, name, None):
            signal.signal(number, signal.SIG_IGN)
    tolerate_closed_streams()


def end_with_parent() -> None:
    """End this process when the main process ends, in any way; on Linux the system does that (`PROCESSES`)."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
