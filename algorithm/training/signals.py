"""Signals that end a run (SIGINT, SIGTERM and SIGHUP), raised as exceptions between two ticks."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any

BURST_SECONDS = 1.0  # seconds in which several signals count as one


class Terminated(BaseException):
    """SIGTERM was received; like KeyboardInterrupt this is no Exception."""


class TerminalClosed(Terminated):
    """SIGHUP was received: the terminal was closed."""


STOP_EXCEPTIONS: dict[int, type[BaseException]] = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated}
SIGHUP = getattr(signal, "SIGHUP", None)  # None on Windows
if SIGHUP:
    STOP_EXCEPTIONS[SIGHUP] = TerminalClosed


@contextmanager
def _handle_stop_signals(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Let `handler` receive the signals that end a run within the block, but not a SIGHUP that is ignored (nohup)."""
    global _counted_at
    old_handlers = {}
    try:
        if threading.current_thread() is threading.main_thread():
            _counted_at = -math.inf
            for number in STOP_EXCEPTIONS:
                if number != SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                    old_handlers[number] = signal.signal(number, handler)
        yield
    finally:
        for number, old_handler in old_handlers.items():
            signal.signal(number, old_handler)


@contextmanager
def raise_on_stop_signals() -> Iterator[None]:
    """Raise the exceptions of `STOP_EXCEPTIONS` for signals within the block.

    Further signals in the next `BURST_SECONDS` are ignored, so that a key that is held down does not interrupt the
    handling of the first signal. Has no effect outside of the main thread, which receives no signals.
    """
    with _handle_stop_signals(_handle_stop):
        yield


_counted_at = -math.inf  # time of the last signal that was deferred or raised; global, as signal handlers are


def _is_in_burst() -> bool:
    """Return whether a signal that is received now belongs to a burst, of which only the first signal counts."""
    return time.monotonic() - _counted_at <= BURST_SECONDS


def _handle_stop(number: int, frame: FrameType | None) -> None:
    if not _is_in_burst():
        _raise(number)


def _raise(number: int) -> None:
    global _counted_at
    _counted_at = time.monotonic()
    raise STOP_EXCEPTIONS[number]


class DeferredSignals(ExitStack):
    """A context in which the first signal is deferred until `raise_pending`, so that no tick is left incomplete.

    Code in the block that takes long calls `raise_deferred` where it may be interrupted.

    A second signal is raised at once; those within `BURST_SECONDS` of one that counts are ignored. After `defer_all`,
    all signals are deferred until the end of the context. Has no effect outside of the main thread, which receives no
    signals.
    """

    def __init__(self) -> None:
        super().__init__()
        self._pending: list[int] = []
        self._defers_all = False

    def __enter__(self) -> DeferredSignals:
        self.enter_context(_handle_stop_signals(self._receive))
        self.callback(_innermost.reset, _innermost.set(self))
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: Any) -> None:
        super().__exit__(kind, *details)
        if kind is None:
            self.raise_pending()

    @property
    def is_pending(self) -> bool:
        """Return whether a signal is deferred."""
        return bool(self._pending)

    def raise_pending(self) -> None:
        """Raise the exception of the first deferred signal, if there is one."""
        if self._pending:
            _raise(self._pending[0])

    def defer_all(self) -> None:
        """Defer all signals until the end of the context."""
        self._defers_all = True

    def _receive(self, number: int, frame: FrameType | None) -> None:
        global _counted_at
        if _is_in_burst():
            return
        _counted_at = time.monotonic()
        self._pending.append(number)
        if len(self._pending) > 1 and not self._defers_all:
            self.raise_pending()


_innermost: ContextVar[DeferredSignals | None] = ContextVar("innermost", default=None)  # context of this thread


def raise_deferred() -> None:
    """Raise the exception of a signal that the innermost context of this thread has deferred, unless it defers all."""
    signals = _innermost.get()
    if signals and not signals._defers_all:
        signals.raise_pending()
