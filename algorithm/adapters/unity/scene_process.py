"""One scene in a separate process: started, supervised, closed, and started again after a pause when it fails."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np

from algorithm.adapters.adapter import SimulatorError, derive_seed
from algorithm.adapters.curriculum import Value
from algorithm.adapters.process_setup import PROCESSES, end_with_parent, prepare_worker
from algorithm.adapters.unity.launch import LaunchConfig, find_player
from algorithm.adapters.unity.scene_tick import PlayerExited, SceneTick

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds between a failure and the next start, doubled after each failure
STABLE_TICKS = 10  # ticks after which the pause is `FIRST_PAUSE` again
MAX_WAIT = 0.5  # seconds of one wait
GRACE_SECONDS = 10.0  # seconds that a process has to answer or end, in addition to the limit of its scene


class SceneProcess:
    """A scene in a separate process.

    The scene is in one of four states: it awaits actions (`awaits_actions`), executes them (`is_stepping`), opens, or
    pauses after a failure. `pipe` becomes readable when `receive` has a message; it is None during a pause.
    """

    def __init__(self, launch: LaunchConfig, number: int):
        self.launch, self.number = launch, number
        self.pipe: Connection | None = None
        self.awaits_actions = self.is_stepping = False
        self.failures = 0
        self._process: BaseProcess | None = None
        self._pause, self._ticks = FIRST_PAUSE, 0
        self._start_at = 0.0
        self._deadline: float | None = None
        self._sent_parameters: dict[str, Value] = {}

    def start(self, seed: int, parameters: Mapping[str, Value]) -> None:
        """Start to open the scene; `receive` returns its first tick, or why it did not open."""
        self.close()
        self._seed, self._sent_parameters, self._ticks = seed, dict(parameters), 0
        self.pipe, child_pipe = PROCESSES.Pipe()
        self._process = PROCESSES.Process(
            target=run_scene, args=(child_pipe, self.launch, self.number, seed, self._sent_parameters), daemon=True
        )
        self._process.start()
        child_pipe.close()
        # There is no time limit for the user to press Play in the editor.
        self._deadline = None if self.launch.path is None else self._get_deadline(3)

    def start_if_due(self, parameters: Mapping[str, Value]) -> None:
        """Open the scene again if the pause after a failure is over."""
        if self.pipe is None and time.monotonic() >= self._start_at:
            self.start(derive_seed(self._seed, self.failures), parameters)

    @property
    def wait_seconds(self) -> float:
        """Return the seconds after which the scene needs a call even if no message arrives."""
        due = self._start_at if self.pipe is None else self._deadline
        return MAX_WAIT if due is None else min(MAX_WAIT, max(0.0, due - time.monotonic()))

    def send(self, actions: Mapping[str, np.ndarray], parameters: Mapping[str, Value]) -> None:
        """Send {behavior: actions [n, size]}, and those environment parameters that have changed."""
        changed = {
            name: value
            for name, value in parameters.items()
            if name not in self._sent_parameters or self._sent_parameters[name] != value
        }
        self._sent_parameters |= changed
        self.awaits_actions, self.is_stepping = False, True
        self._deadline = self._get_deadline(1)
        with suppress(OSError):  # `receive` returns why the process ended
            self.pipe.send((actions, changed))  # type: ignore[union-attr]

    def receive(self) -> SceneTick | PlayerExited | None:
        """Return the next tick, or why the scene failed; None if the scene has time left to answer."""
        if self.pipe is None:
            return None
        message: SceneTick | PlayerExited
        try:
            if self.pipe.poll():
                message = self.pipe.recv()
            elif self._deadline is None or time.monotonic() < self._deadline:
                return None
            else:
                message = PlayerExited(f"{self.launch.name} did not answer in {self.launch.timeout:g} seconds")
        except (EOFError, OSError):
            message = PlayerExited(f"the process of {self.launch.name} ended without a message")
        if isinstance(message, SceneTick):
            self.awaits_actions, self.is_stepping = True, False
            self._ticks += 1
            if self._ticks >= STABLE_TICKS:
                self._pause = FIRST_PAUSE
        return message

    def schedule_restart(self, player_exited: PlayerExited) -> float:
        """Close the scene and return the seconds until it opens again."""
        self.close()
        self.failures += 1
        seconds, self._pause = (
            (0.0, FIRST_PAUSE) if player_exited.stopped else (self._pause, min(2 * self._pause, LONGEST_PAUSE))
        )
        self._start_at = time.monotonic() + seconds
        return seconds

    def close(self) -> None:
        """Close the scene and end its process. A second call does nothing."""
        self.awaits_actions = self.is_stepping = False
        if self.pipe is not None:
            self.pipe.close()  # the process then ends its player and itself
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


def run_scene(pipe: Connection, launch: LaunchConfig, number: int, seed: int, parameters: Mapping[str, Value]) -> None:
    """Open a scene, in the process of the scene, and step it until the other end of `pipe` is closed.

    Sends a SceneTick after the start and for each ({behavior: actions [n, size]}, changed parameters) that it receives,
    or a PlayerExited if the scene fails, which ends the process.
    """
    prepare_worker()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the player ends too
    end_with_parent()  # the watchdog then ends the player
    from algorithm.adapters.unity.client import PlayerQuit, UnityClient  # ML-Agents' client, for this process only

    try:
        log_file = launch.make_log_file(number)
        with UnityClient(
            None if launch.path is None else find_player(Path(launch.path)),
            port=launch.get_port(number),
            start_limit=None if launch.path is None else launch.timeout,
            limit=launch.timeout,
            arguments=launch.make_arguments(log_file),
            seed=seed,
            engine=launch.engine,
            parameters=parameters,
            log=log_file,
        ) as client:
            pipe.send(client.reset())
            while True:
                pipe.send(client.step(*pipe.recv()))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the other end is closed
    except Exception as error:  # a scene may fail with any error
        reason = str(error) if isinstance(error, SimulatorError) else f"{type(error).__name__}: {error}"
        with suppress(OSError):
            pipe.send(PlayerExited(" ".join(reason.split()), isinstance(error, PlayerQuit)))
