"""Processes that this package starts: how they are spawned, and their signals."""

from __future__ import annotations

import gc
import multiprocessing
import multiprocessing.context
import os
import signal
import sys
import threading
from multiprocessing.connection import wait
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any

from algorithm.adapters.standard_streams import tolerate_closed_streams

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
    Meanwhile no garbage is collected (see `start_garbage_collection`).
    """

    def __reduce__(self) -> tuple[Any, ...]:
        setup = DIE_WITH_PARENT.format(parent=os.getpid())
        return eval, (f"(__import__('gc').disable(), {setup}, {str(self)!r})[-1]",)


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


def prepare_worker() -> None:
    """Ignore Ctrl-C and hang-ups, which the main process handles, and make the standard streams fault-tolerant."""
    for name in ("SIGINT", "SIGHUP"):  # Windows has no SIGHUP
        if number := getattr(signal, name, None):
            signal.signal(number, signal.SIG_IGN)
    tolerate_closed_streams()


def start_garbage_collection() -> None:
    """Collect garbage from now on, but not among the objects that exist: during an import it searches all of them."""
    gc.freeze()
    gc.enable()


def end_with_parent() -> None:
    """End this process when the main process ends, in any way; on Linux the system does that (`PROCESSES`)."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
