"""Signals that end a run: Ctrl-C, SIGTERM and SIGHUP (a terminal that is closed), where they do no harm."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

BURST_SECONDS = 1.0  # seconds in which several signals are one


class Terminated(BaseException):
    """SIGTERM came; like KeyboardInterrupt it is no Exception."""


class TerminalClosed(Terminated):
    """SIGHUP came: the terminal was closed."""


STOP_EXCEPTIONS: dict[int, type[BaseException]] = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated}
SIGHUP = getattr(signal, "SIGHUP", None)  # None on Windows
if SIGHUP:
    STOP_EXCEPTIONS[SIGHUP] = TerminalClosed


def list_stop_signals() -> list[int]:
    """Return the signals that end a run: those of `STOPS` without SIGHUP if it is ignored, as with nohup."""
    return [number for number in STOP_EXCEPTIONS if number != SIGHUP or signal.getsignal(number) != signal.SIG_IGN]


@contextmanager
def raise_on_stop_signals() -> Iterator[None]:
    """Raise the exception of each of `STOPS` within the block, once; further signals at the same time change nothing.

    So a key that is held down does not interrupt what the first signal has started. In the main thread only, which is
    the one that receives signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    global _raised_at
    _raised_at = -math.inf
    old_handlers = {number: signal.signal(number, _handle_stop) for number in list_stop_signals()}
    try:
        yield
    finally:
        for number, handler in old_handlers.items():
            signal.signal(number, handler)


_raised_at = -math.inf  # signals are the process's, and so is when one was last heard


def _handle_stop(number: int, frame: FrameType | None) -> None:
    if time.monotonic() - _raised_at > BURST_SECONDS:
        _raise(number)


def _raise(number: int) -> None:
    global _raised_at
    _raised_at = time.monotonic()
    raise STOP_EXCEPTIONS[number]


class DeferredSignals:
    """Within it the first signal waits until `raise_pending`, so that no update is left half made; a second one does not.

    After `defer_all` all wait until its end. Signals reach the main thread only: in another one it does nothing.
    """

    def __init__(self) -> None:
        self._pending: list[int] = []
        self._defers_all = False
        self._old_handlers: dict[int, object] = {}

    def __enter__(self) -> DeferredSignals:
        if threading.current_thread() is threading.main_thread():
            self._old_handlers = {number: signal.signal(number, self._receive) for number in list_stop_signals()}
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)
        if kind is None:
            self.raise_pending()

    def raise_pending(self) -> None:
        """Raise the exception of the first signal that waits, if any."""
        if self._pending:
            _raise(self._pending[0])

    def defer_all(self) -> None:
        """No signal interrupts what comes now."""
        self._defers_all = True

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._pending.append(number)
        if len(self._pending) > 1 and not self._defers_all:
            self.raise_pending()
