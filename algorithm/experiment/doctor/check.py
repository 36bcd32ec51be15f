"""One thing that is looked at, and what is found; no look can take the others with it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

OK = "ok"
MISSING = "missing"  # not there, and not asked for
BROKEN = "broken"  # asked for, and it cannot work

Seen = tuple[str, str]  # one of these, and a line: what is there, or what to do


@dataclass(frozen=True)
class Finding:
    """What one check came to."""

    name: str
    state: str
    line: str


@dataclass(frozen=True)
class Check:
    """A look at one thing, which may raise, and may take `limit` seconds."""

    name: str
    look: Callable[[], Seen]
    limit: float = 200.0

    def __call__(self) -> Finding:
        """Look; a look that raises, or does not come back, has found something broken."""
        seen: list[Seen] = []
        # A daemon, so that one that never comes back keeps nothing alive.
        thread = threading.Thread(target=lambda: seen.append(self._look()), daemon=True)
        thread.start()
        thread.join(self.limit)
        state, line = seen[0] if seen else (BROKEN, f"no answer within {self.limit:g} s")
        return Finding(self.name, state, " ".join(line.split()))

    def asked(self) -> Check:
        """The same look at what is asked for: there, missing is broken."""

        def look() -> Seen:
            state, line = self.look()
            return BROKEN if state == MISSING else state, line

        return replace(self, look=look)

    def _look(self) -> Seen:
        try:
            return self.look()
        except Exception as error:  # whatever is wrong with what is looked at
            return BROKEN, described(error)


def described(error: BaseException) -> str:
    """An error as one line; those of this project say themselves what they are."""
    line = " ".join(str(error).split())
    return line if type(error).__module__.startswith("algorithm.") else f"{type(error).__name__}: {line}"
