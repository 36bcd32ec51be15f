"""Preparation of a process in which a simulator runs."""

from __future__ import annotations

import signal

from algorithm.adapters.standard_streams import tolerate_closed_streams


def prepare_worker() -> None:
    """Ignore Ctrl-C and a closed terminal, which the main process handles, and survive lost readers."""
    for name in ("SIGINT", "SIGHUP"):  # there is no SIGHUP on Windows
        if number := getattr(signal, name, None):
            signal.signal(number, signal.SIG_IGN)
    tolerate_closed_streams()
