"""Faults that a run tolerates: a line for the user, and all details in a file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging.handlers import RotatingFileHandler
from pathlib import Path

from algorithm.training.history import Counters

MAX_LINES = 20  # faults with a line for the user
MAX_BYTES = 2**20  # size of the file, in bytes, at which it is rotated once


@contextmanager
def record_faults(path: Path, log: Callable[[str], None], counters: Counters) -> Iterator[None]:
    """Record what the package logs within the block, with the number of env steps.

    Args:
        path: File that receives all messages from level INFO on.
        log: Function that receives a line for each of the first warnings.
        counters: Counters of the run.
    """
    logger = logging.getLogger("algorithm")
    level = logger.level
    handlers: list[logging.Handler] = [_FaultFile(path), _FaultLines(path, log)]

    def add_env_steps(record: logging.LogRecord) -> bool:
        record.__dict__["env_steps"] = f"{counters.env_steps:,}"
        return True

    for handler in handlers:
        handler.addFilter(add_env_steps)
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
    """A file handler that drops messages if the disk is full."""

    def __init__(self, path: Path):
        super().__init__(path, maxBytes=MAX_BYTES, backupCount=1, delay=True, encoding="utf-8")
        self.setFormatter(logging.Formatter("%(asctime)s env step %(env_steps)s: %(message)s"))

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        pass


class _FaultLines(logging.Handler):
    """A handler that passes the first warnings of a run to `log`."""

    def __init__(self, path: Path, log: Callable[[str], None]):
        super().__init__(logging.WARNING)
        self.path, self.log, self.count = path, log, 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1
        if self.count <= MAX_LINES:
            self.log(f"env step {record.__dict__['env_steps']}: {' '.join(record.getMessage().split())}")
        if self.count == MAX_LINES:
            self.log(f"further faults are recorded in {self.path} only")
