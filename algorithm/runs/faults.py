"""The faults of a run: those that it tolerates are recorded, the one that ends it has an exit status and a message."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING

from algorithm.errors import summarize_error
from algorithm.parts.user_code import find_user_error

if TYPE_CHECKING:  # imports of torch, which describe_end does not need
    from algorithm.training.progress import Counters

MAX_LINES = 20  # lines about faults for the user
ESCAPE = "backslashreplace"  # for characters that an encoding does not have, such as single surrogates
MAX_BYTES = 2**20  # size of the file, in bytes, at which it is rotated once
# Exit status and line by the name of the exception, since most of their modules take a while to import.
STATUSES = {
    "UserError": (2, "{error}"),
    "DoctorFailed": (1, "{error}"),
    "UnsupportedEnvironment": (2, "{error}"),
    "EnvironmentStartError": (3, "{error}"),
    "EnvironmentCrashed": (1, "{error}"),
    "InvalidEpisodes": (1, "{error}"),
    "Diverged": (4, "{error}"),
    "LearnerUnreachable": (1, "{error}"),
    "CheckpointError": (1, "{error}"),
    "ExportFailed": (1, "{error}"),
    "MemberFailed": (1, "{error}"),
    "OSError": (1, "{kind}: {error}"),
    "TerminalClosed": (129, "Hung up.{saved}"),
    "KeyboardInterrupt": (130, "Interrupted.{saved}"),
    "Terminated": (143, "Terminated.{saved}"),
    "MemoryError": (1, "not enough memory: {summary}"),
    "BaseException": (1, "{summary} (unexpected; --debug shows where it comes from)"),
}


@contextmanager
def record_faults(path: Path, log: Callable[[str], None], counters: Counters) -> Iterator[Callable[[], int]]:
    """Record what the package logs within the block, with the number of env steps; yield a count of the warnings.

    Args:
        path: File that receives all messages from level INFO on.
        log: Function that receives a line for each of the first warnings.
        counters: Counters of the run.
    """
    logger = logging.getLogger("algorithm")
    level = logger.level
    lines = _FaultLines(path, log)
    handlers: list[logging.Handler] = [_FaultFile(path), lines]

    def add_env_steps(record: logging.LogRecord) -> bool:
        record.__dict__["env_steps"] = f"{counters.env_steps:,}"
        return True

    for handler in handlers:
        handler.addFilter(add_env_steps)
        logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lambda: lines.count
    finally:
        logger.setLevel(level)
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()


class _FaultFile(RotatingFileHandler):
    """A file handler that drops messages if the disk is full."""

    def __init__(self, path: Path):
        super().__init__(path, maxBytes=MAX_BYTES, backupCount=1, delay=True, encoding="utf-8", errors=ESCAPE)
        self.setFormatter(logging.Formatter("%(asctime)s env step %(env_steps)s: %(message)s"))

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        pass


class _FaultLines(logging.Handler):
    """A handler that passes warnings of a run to `log`, each kind once; then the 10th, the 100th ... with their number.

    Warnings that differ in numbers only, but for the number of a line of code, are of one kind.
    """

    def __init__(self, path: Path, log: Callable[[str], None]):
        super().__init__(logging.WARNING)
        self.path, self.log, self.count, self.n_lines = path, log, 0, 0
        self.kinds: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1
        text = " ".join(record.getMessage().split())
        kind = re.sub(r"(?<!line )\b\d[\d.,]*", "#", text)
        self.kinds[kind] += 1
        number = self.kinds[kind]
        if self.n_lines == MAX_LINES or not re.fullmatch("10*", str(number)):
            return
        self.n_lines += 1
        place = f" (details: {self.path})" if self.count == 1 else ""
        repeated = f" ({number:,} faults of this kind so far)" if number > 1 else ""
        line = f"env step {record.__dict__['env_steps']}: {text}{repeated}{place}"
        try:
            self.log(line)
        except UnicodeEncodeError:  # of `print` in a program
            self.log(line.encode("ascii", ESCAPE).decode())
        if self.n_lines == MAX_LINES:
            self.log(f"further faults are recorded in {self.path} only")


def describe_end(error: BaseException, saved: str = "") -> tuple[int, str]:
    """Return the exit status and the message of what ended a command; `saved` is a sentence on what was saved."""
    error = find_user_error(error)
    status, line = next(STATUSES[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in STATUSES)
    return status, line.format(error=error, kind=type(error).__name__, summary=summarize_error(error), saved=saved)
