"""What a process of a simulator does first."""

from __future__ import annotations

import signal

from algorithm.adapters.streams import survive_lost_readers


def prepare_helper() -> None:
    """Leave Ctrl-C and a closed terminal, which reach all processes, to the one that started this; print as it does."""
    for name in ("SIGINT", "SIGHUP"):  # there is no SIGHUP on Windows
        if number := getattr(signal, name, None):
            signal.signal(number, signal.SIG_IGN)
    survive_lost_readers()
