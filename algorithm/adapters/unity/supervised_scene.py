"""One scene in a process of its own: started, watched, ended, and started again a little later each time it breaks."""

from __future__ import annotations

import logging
import multiprocessing
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import numpy as np

from algorithm.adapters.adapter import later_seed
from algorithm.adapters.unity.curriculum import Value, changes
from algorithm.adapters.unity.launch import Gone, Launch, Tick
from algorithm.adapters.unity.worker import serve

LOG = logging.getLogger(__name__)
SPAWN = multiprocessing.get_context("spawn")  # gRPC does not survive a fork
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds between a breakdown and the next start, doubled each time
ENOUGH = 10  # ticks after which a scene that breaks counts as one that had worked
LOOK = 0.5  # seconds that are waited for at a time
GRACE = 10.0  # seconds more than its own limit that a process gets, to answer or to end


class Player:
    """A scene as `launch` says, the `number`-th of several.

    `pipe` can be waited for while it is not None; then `receive` has something to tell. A scene is either `awaiting`
    actions, `asked` what comes of those it got, opening, or pausing.
    """

    def __init__(self, launch: Launch, number: int):
        self.launch, self.number = launch, number
        self.pipe: Connection | None = None
        self.awaiting = self.asked = False
        self.breakdowns = 0
        self._process: BaseProcess | None = None
        self._pause, self._ticks = FIRST_PAUSE, 0
        self._start_at = 0.0
        self._deadline: float | None = None
        self._told: dict[str, Value] = {}

    def start(self, seed: int, parameters: Mapping[str, Value]) -> None:
        """Open the scene; what it shows first, or why it did not open, is received."""
        self.close()
        self._seed, self._told, self._ticks = seed, dict(parameters), 0
        self.pipe, theirs = SPAWN.Pipe()
        self._process = SPAWN.Process(
            target=serve, args=(theirs, self.launch, self.number, seed, self._told), daemon=True
        )
        self._process.start()
        theirs.close()
        # Whoever presses Play in the editor may take their time.
        self._deadline = None if self.launch.path is None else self._limit(3)

    def start_if_due(self, parameters: Mapping[str, Value]) -> None:
        """Open the scene again once the pause after a breakdown is over."""
        if self.pipe is None and time.monotonic() >= self._start_at:
            self.start(later_seed(self._seed, self.breakdowns), parameters)

    @property
    def patience(self) -> float:
        """Seconds until something may have to be done though nothing is received."""
        until = self._start_at if self.pipe is None else self._deadline
        return LOOK if until is None else min(LOOK, max(0.0, until - time.monotonic()))

    def send(self, actions: Mapping[str, np.ndarray], parameters: Mapping[str, Value]) -> None:
        """Go on with {behavior: actions [n, size]}, and with other environment parameters than before."""
        news = dict(changes(self._told, parameters))
        self._told |= news
        self.awaiting, self.asked = False, True
        self._deadline = self._limit(1)
        try:
            self.pipe.send((actions, news))  # type: ignore[union-attr]
        except OSError:
            pass  # what became of it is received

    def receive(self) -> Tick | Gone | None:
        """What the scene shows, or why it is gone; None where it has time left to answer."""
        if self.pipe is None:
            return None
        try:
            if not self.pipe.poll():
                if self._deadline is None or time.monotonic() < self._deadline:
                    return None
                answer: Tick | Gone = Gone(f"{self.launch.name} did not answer in {self.launch.timeout:g} seconds")
            else:
                answer = self.pipe.recv()
        except (EOFError, OSError):
            answer = Gone(f"the process of {self.launch.name} ended without a word")
        if isinstance(answer, Tick):
            self.awaiting, self.asked = True, False
            self._ticks += 1
            if self._ticks >= ENOUGH:
                self._pause = FIRST_PAUSE
        return answer

    def pause(self, gone: Gone) -> float:
        """Give up the scene for now; seconds until it is opened again."""
        self.close()
        self.breakdowns += 1
        seconds, self._pause = (
            (0.0, FIRST_PAUSE) if gone.stopped else (self._pause, min(2 * self._pause, LONGEST_PAUSE))
        )
        self._start_at = time.monotonic() + seconds
        return seconds

    def close(self) -> None:
        """End the scene and its process; calling it twice is harmless."""
        self.awaiting = self.asked = False
        if self.pipe is not None:
            self.pipe.close()  # the process ends its player and then itself
            self.pipe = None
        if self._process is not None:
            if self._ticks:
                self._process.join(GRACE)
            for end in (self._process.terminate, self._process.kill):
                if self._process.is_alive():
                    end()
                    self._process.join(GRACE)
            self._process.close()
            self._process = None

    def _limit(self, waits: int) -> float:
        return time.monotonic() + waits * self.launch.timeout + GRACE
