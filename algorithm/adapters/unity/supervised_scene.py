"""One scene in a process of its own: started, watched, ended, and started again a little later each time it breaks."""

from __future__ import annotations

import logging
import multiprocessing
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import numpy as np

from algorithm.adapters.adapter import derive_seed
from algorithm.adapters.unity.curriculum import Value, find_changes
from algorithm.adapters.unity.launch import LaunchConfig, PlayerExited, SceneTick
from algorithm.adapters.unity.worker import run_worker

LOG = logging.getLogger(__name__)
SPAWN_CONTEXT = multiprocessing.get_context("spawn")  # gRPC does not survive a fork
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds between a breakdown and the next start, doubled each time
STABLE_TICKS = 10  # ticks after which a scene that breaks counts as one that had worked
MAX_WAIT = 0.5  # seconds that are waited for at a time
GRACE_SECONDS = 10.0  # seconds more than its own limit that a process gets, to answer or to end


class SupervisedScene:
    """A scene as `launch` says, the `number`-th of several.

    `pipe` can be waited for while it is not None; then `receive` has something to tell. A scene is either `awaits_actions`
    actions, `is_stepping` what comes of those it got, opening, or pausing.
    """

    def __init__(self, launch: LaunchConfig, number: int):
        self.launch, self.number = launch, number
        self.pipe: Connection | None = None
        self.awaits_actions = self.is_stepping = False
        self.breakdowns = 0
        self._process: BaseProcess | None = None
        self._pause, self._ticks = FIRST_PAUSE, 0
        self._start_at = 0.0
        self._deadline: float | None = None
        self._sent_parameters: dict[str, Value] = {}

    def start(self, seed: int, parameters: Mapping[str, Value]) -> None:
        """Open the scene; what it shows first, or why it did not open, is received."""
        self.close()
        self._seed, self._sent_parameters, self._ticks = seed, dict(parameters), 0
        self.pipe, child_pipe = SPAWN_CONTEXT.Pipe()
        self._process = SPAWN_CONTEXT.Process(
            target=run_worker, args=(child_pipe, self.launch, self.number, seed, self._sent_parameters), daemon=True
        )
        self._process.start()
        child_pipe.close()
        # Whoever presses Play in the editor may take their time.
        self._deadline = None if self.launch.path is None else self._get_deadline(3)

    def start_if_due(self, parameters: Mapping[str, Value]) -> None:
        """Open the scene again once the pause after a breakdown is over."""
        if self.pipe is None and time.monotonic() >= self._start_at:
            self.start(derive_seed(self._seed, self.breakdowns), parameters)

    @property
    def wait_seconds(self) -> float:
        """Seconds until something may have to be done though nothing is received."""
        due = self._start_at if self.pipe is None else self._deadline
        return MAX_WAIT if due is None else min(MAX_WAIT, max(0.0, due - time.monotonic()))

    def send(self, actions: Mapping[str, np.ndarray], parameters: Mapping[str, Value]) -> None:
        """Go on with {behavior: actions [n, size]}, and with other environment parameters than before."""
        changed = dict(find_changes(self._sent_parameters, parameters))
        self._sent_parameters |= changed
        self.awaits_actions, self.is_stepping = False, True
        self._deadline = self._get_deadline(1)
        try:
            self.pipe.send((actions, changed))  # type: ignore[union-attr]
        except OSError:
            pass  # what became of it is received

    def receive(self) -> SceneTick | PlayerExited | None:
        """What the scene shows, or why it is gone; None where it has time left to answer."""
        if self.pipe is None:
            return None
        try:
            if not self.pipe.poll():
                if self._deadline is None or time.monotonic() < self._deadline:
                    return None
                message: SceneTick | PlayerExited = PlayerExited(
                    f"{self.launch.name} did not answer in {self.launch.timeout:g} seconds"
                )
            else:
                message = self.pipe.recv()
        except (EOFError, OSError):
            message = PlayerExited(f"the process of {self.launch.name} ended without a word")
        if isinstance(message, SceneTick):
            self.awaits_actions, self.is_stepping = True, False
            self._ticks += 1
            if self._ticks >= STABLE_TICKS:
                self._pause = FIRST_PAUSE
        return message

    def schedule_restart(self, player_exited: PlayerExited) -> float:
        """Give up the scene for now; seconds until it is opened again."""
        self.close()
        self.breakdowns += 1
        seconds, self._pause = (
            (0.0, FIRST_PAUSE) if player_exited.stopped else (self._pause, min(2 * self._pause, LONGEST_PAUSE))
        )
        self._start_at = time.monotonic() + seconds
        return seconds

    def close(self) -> None:
        """End the scene and its process; calling it twice is harmless."""
        self.awaits_actions = self.is_stepping = False
        if self.pipe is not None:
            self.pipe.close()  # the process ends its player and then itself
            self.pipe = None
        if self._process is not None:
            if self._ticks:
                self._process.join(GRACE_SECONDS)
            for stop in (self._process.terminate, self._process.kill):
                if self._process.is_alive():
                    stop()
                    self._process.join(GRACE_SECONDS)
            self._process.close()
            self._process = None

    def _get_deadline(self, n_timeouts: int) -> float:
        return time.monotonic() + n_timeouts * self.launch.timeout + GRACE_SECONDS
