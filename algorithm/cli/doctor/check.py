"""A check of one thing, which reports any error as its finding."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

OK = "ok"
MISSING = "missing"  # not installed, and not required
BROKEN = "broken"  # required, and it does not work
TIMEOUT = "timeout"  # no result in time, perhaps because the machine is busy

Outcome = tuple[str, str]  # one of these states, and a line: what was found, or what to do


@dataclass(frozen=True)
class Finding:
    """A record of the result of a check."""

    name: str
    state: str
    line: str


@dataclass(frozen=True)
class Check:
    """A check of one thing. `run` may raise and may take `limit` seconds; TimeoutError counts as a time-out, too."""

    name: str
    run: Callable[[], Outcome]
    limit: float = 200.0

    def __call__(self) -> Finding:
        """Run the check: `broken` if it raises, `timeout` if it does not return within `limit`."""
        outcomes: list[Outcome] = []
        # A daemon thread, so that a check that never returns does not keep the process alive.
        thread = threading.Thread(target=lambda: outcomes.append(self._run_safely()), daemon=True)
        thread.start()
        thread.join(self.limit)
        state, line = outcomes[0] if outcomes else (TIMEOUT, describe_timeout(self.limit))
        return Finding(self.name, state, " ".join(line.split()))

    def as_required(self) -> Check:
        """Return this check for something that is required, so that `missing` is `broken`."""

        def run() -> Outcome:
            state, line = self.run()
            return BROKEN if state == MISSING else state, line

        return replace(self, run=run)

    def _run_safely(self) -> Outcome:
        try:
            return self.run()
        except TimeoutError as error:
            return TIMEOUT, str(error)
        except Exception as error:  # a broken package may raise anything
            return BROKEN, describe_error(error)


def describe_timeout(limit: float) -> str:
    """Return the line of a time-out, which may be the fault of a busy machine."""
    return f"no answer within {limit:g} s: try again when the machine is less busy"


def describe_error(error: BaseException) -> str:
    """Return an error as one line, with its type unless it is an error of this project."""
    line = " ".join(str(error).split())
    return line if type(error).__module__.startswith("algorithm.") else f"{type(error).__name__}: {line}"
