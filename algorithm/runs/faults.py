"""Faults that a run lives with: one line each to the user, all that is known to a file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging.handlers import RotatingFileHandler
from pathlib import Path

from algorithm.training.history import Counters

MAX_LINES = 20  # lines; a fault that goes on and on must not bury everything else
MAX_BYTES = 2**20  # bytes of the file before it is turned over, once


@contextmanager
def record_faults(path: Path, log: Callable[[str], None], counters: Counters) -> Iterator[None]:
    """While it lasts, what the rooms below log as a warning is said, and what they log goes to the file `path`."""
    logger = logging.getLogger("algorithm")
    level = logger.level
    formatter = logging.Formatter("%(asctime)s env step %(env_steps)s: %(message)s")
    handlers = [
        _FaultFile(path, maxBytes=MAX_BYTES, backupCount=1, delay=True, encoding="utf-8"),
        _FaultLines(path, log),
    ]

    def stamp(record: logging.LogRecord) -> bool:
        record.env_steps = f"{counters.env_steps:,}"
        return True

    for handler in handlers:
        handler.setFormatter(formatter)
        handler.addFilter(stamp)
        logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()


class _FaultFile(RotatingFileHandler):
    """Does without what a full disk does not take."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        pass


class _FaultLines(logging.Handler):
    """Says the first faults of a run."""

    def __init__(self, path: Path, log: Callable[[str], None]):
        super().__init__(logging.WARNING)
        self.path, self.log, self.count = path, log, 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1
        if self.count <= MAX_LINES:
            self.log(f"env step {record.env_steps}: {' '.join(record.getMessage().split())}")
        if self.count == MAX_LINES:
            self.log(f"further faults are told in {self.path} only")
