"""One thing that is looked at, and what is found; no look can take the others with it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

OK = "ok"
MISSING = "missing"  # not there, and not asked for
BROKEN = "broken"  # asked for, and it cannot work
TIMEOUT = "timeout"  # no answer in time, which may be because the machine is busy

Outcome = tuple[str, str]  # one of these, and a line: what is there, or what to do


@dataclass(frozen=True)
class Finding:
    """What one check came to."""

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
        # A daemon, so that one that never comes back keeps nothing alive.
        thread = threading.Thread(target=lambda: outcomes.append(self._run_safely()), daemon=True)
        thread.start()
        thread.join(self.limit)
        state, line = outcomes[0] if outcomes else (TIMEOUT, describe_timeout(self.limit))
        return Finding(self.name, state, " ".join(line.split()))

    def as_required(self) -> Check:
        """The same look at what is asked for: there, missing is broken."""

        def run() -> Outcome:
            state, line = self.run()
            return BROKEN if state == MISSING else state, line

        return replace(self, run=run)

    def _run_safely(self) -> Outcome:
        try:
            return self.run()
        except TimeoutError as error:
            return TIMEOUT, str(error)
        except Exception as error:  # whatever is wrong with what is looked at
            return BROKEN, describe_error(error)


def describe_timeout(limit: float) -> str:
    """Return the line of a time-out, which may be the fault of a busy machine."""
    return f"no answer within {limit:g} s: try again when the machine is less busy"


def describe_error(error: BaseException) -> str:
    """An error as one line; those of this project say themselves what they are."""
    line = " ".join(str(error).split())
    return line if type(error).__module__.startswith("algorithm.") else f"{type(error).__name__}: {line}"
