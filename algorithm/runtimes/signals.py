"""Signals that end a run: Ctrl-C, SIGTERM and SIGHUP (a terminal that is closed), where they do no harm."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

BURST = 1.0  # seconds in which several signals are one


class Terminated(BaseException):
    """SIGTERM came; like KeyboardInterrupt it is no Exception."""


class HungUp(Terminated):
    """SIGHUP came: the terminal was closed."""


STOPS: dict[int, type[BaseException]] = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated}
SIGHUP = getattr(signal, "SIGHUP", None)  # None on Windows
if SIGHUP:
    STOPS[SIGHUP] = HungUp


def stop_signals() -> list[int]:
    """Return the signals that end a run: those of `STOPS` without SIGHUP if it is ignored, as with nohup."""
    return [number for number in STOPS if number != SIGHUP or signal.getsignal(number) != signal.SIG_IGN]


@contextmanager
def terminable() -> Iterator[None]:
    """Raise the exception of each of `STOPS` within the block, once; further signals at the same time change nothing.

    So a key that is held down does not interrupt what the first signal has started. In the main thread only, which is
    the one that receives signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    global _raised_at
    _raised_at = -math.inf
    before = {number: signal.signal(number, _stop) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_raised_at = -math.inf  # signals are the process's, and so is when one was last heard


def _stop(number: int, frame: FrameType | None) -> None:
    if time.monotonic() - _raised_at > BURST:
        _raise(number)


def _raise(number: int) -> None:
    global _raised_at
    _raised_at = time.monotonic()
    raise STOPS[number]


class Deferred:
    """Within it the first signal waits until `raise_asked`, so that no update is left half made; a second one does not.

    After `hold` all wait until its end. Signals reach the main thread only: in another one it does nothing.
    """

    def __init__(self) -> None:
        self._asked: list[int] = []
        self._held = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> Deferred:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._ask) for number in stop_signals()}
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if kind is None:
            self.raise_asked()

    def raise_asked(self) -> None:
        """Raise the exception of the first signal that waits, if any."""
        if self._asked:
            _raise(self._asked[0])

    def hold(self) -> None:
        """No signal interrupts what comes now."""
        self._held = True

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asked.append(number)
        if len(self._asked) > 1 and not self._held:
            self.raise_asked()
