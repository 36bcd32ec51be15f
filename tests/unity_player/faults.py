"""What may go wrong with a player, on purpose."""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from random import SystemRandom

import numpy as np

from tests.unity_player.scene import News

BEFORE = ("never", "handshake", "version", "old")  # those of the start
ENDS = ("crash", "exit", "hang", "quit")
DATA = ("nan", "nan_reward", "shape", "sensors", "broken_png", "huge")
KINDS = (*BEFORE, *ENDS, *DATA)
CHANCE = SystemRandom()


class Quit(Exception):
    """The player says good-bye."""


@dataclass(frozen=True)
class Faults:
    """`kind` happens at tick `at`, or at any tick with probability `chance`; every tick takes `slow` seconds more."""

    kind: str | None = None
    at: int = 0
    chance: float = 0.0
    slow: float = 0.0

    def before_tick(self, tick: int) -> None:
        """End this process, or stop answering, if it is time."""
        if self.slow:
            time.sleep(self.slow)
        if self.kind in ENDS and self.due(tick):
            strike(self.kind)

    def spoil(self, tick: int, news: list[News]) -> None:
        """Change what the first agent says to what no player should say, if it is time."""
        if self.kind not in DATA or not news or not self.due(tick):
            return
        first, obs = news[0], news[0].obs
        if self.kind == "nan_reward":
            first.reward = float("nan")
        elif self.kind == "sensors":
            first.obs = obs[1:]
        elif self.kind == "broken_png":
            first.obs = (bytes(obs[0])[: len(obs[0]) // 2], *obs[1:])
        elif self.kind == "nan":
            first.obs = (np.full_like(obs[0], np.nan), *obs[1:])
        elif self.kind == "shape":
            first.obs = (np.append(obs[0], np.float32(0)).astype("<f4"), *obs[1:])
        else:
            first.obs = (np.zeros(17 * 2**20, "<f4"), *obs[1:])  # more than 64 MiB

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
    while True:  # nothing but a kill ends it
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        sys.stderr.flush()
        time.sleep(60)
