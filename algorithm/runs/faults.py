"""Faults that a run lives with: one line each to the user, all that is known to a file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging.handlers import RotatingFileHandler
from pathlib import Path

from algorithm.training.history import Counters

SHOWN = 20  # lines; a fault that goes on and on must not bury everything else
SIZE = 2**20  # bytes of the file before it is turned over, once


@contextmanager
def told(path: Path, say: Callable[[str], None], counters: Counters) -> Iterator[None]:
    """While it lasts, what the rooms below log as a warning is said, and what they log goes to the file `path`."""
    log = logging.getLogger("algorithm")
    level = log.level
    form = logging.Formatter("%(asctime)s env step %(env_steps)s: %(message)s")
    handlers = [_File(path, maxBytes=SIZE, backupCount=1, delay=True, encoding="utf-8"), _Lines(path, say)]

    def stamp(record: logging.LogRecord) -> bool:
        record.env_steps = f"{counters.env_steps:,}"
        return True

    for handler in handlers:
        handler.setFormatter(form)
        handler.addFilter(stamp)
        log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.setLevel(level)
        for handler in handlers:
            log.removeHandler(handler)
            handler.close()


class _File(RotatingFileHandler):
    """Does without what a full disk does not take."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        pass


class _Lines(logging.Handler):
    """Says the first faults of a run."""

    def __init__(self, path: Path, say: Callable[[str], None]):
        super().__init__(logging.WARNING)
        self.path, self.say, self.shown = path, say, 0

    def emit(self, record: logging.LogRecord) -> None:
        self.shown += 1
        if self.shown <= SHOWN:
            self.say(f"env step {record.env_steps}: {' '.join(record.getMessage().split())}")
        if self.shown == SHOWN:
            self.say(f"further faults are told in {self.path} only")
