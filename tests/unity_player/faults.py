"""Faults of a player, for tests."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from random import SystemRandom

import numpy as np

from tests.unity_player.scene import News

BEFORE = ("never", "handshake", "version", "old")  # faults at the start
ENDS = ("crash", "exit", "hang", "quit")
DATA = ("nan", "huge")
KINDS = (*BEFORE, *ENDS, *DATA)
CHANCE = SystemRandom()


class Quit(Exception):
    """An error that ends the player with a quit."""


@dataclass(frozen=True)
class Faults:
    """A fault `kind` at tick `at`, or at any tick with probability `chance`; every tick takes `slow` seconds more."""

    kind: str | None = None
    at: int = 0
    chance: float = 0.0
    slow: float = 0.0

    def before_tick(self, tick: int) -> None:
        """End this process, or stop answering, if the fault is due."""
        if self.slow:
            time.sleep(self.slow)
        if self.kind in ENDS and self.due(tick):
            strike(self.kind)

    def spoil(self, tick: int, news: list[News]) -> None:
        """Make the message of the first agent invalid, if the fault is due."""
        if self.kind not in DATA or not news or not self.due(tick):
            return
        first, *others = news[0].obs
        # More than 64 MiB are too many.
        wrong = np.full_like(first, np.nan) if self.kind == "nan" else np.zeros(17 * 2**20, "<f4")
        news[0].obs = (wrong, *others)

    def due(self, tick: int) -> bool:
        return CHANCE.random() < self.chance if self.chance else tick == self.at


def strike(kind: str) -> None:
    """Crash, exit, hang or quit."""
    if kind == "crash":
        if os.name == "posix":
            os.kill(os.getpid(), signal.SIGSEGV)
        os._exit(0x3)
    if kind == "exit":
        print("No valid licence\n\nfor this machine", file=sys.stderr, flush=True)
        os._exit(3)
    if kind == "quit":
        raise Quit
    while True:  # until the process is killed
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        sys.stderr.flush()
        time.sleep(60)
