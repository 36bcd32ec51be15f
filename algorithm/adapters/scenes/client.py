"""The trainer's side of one scene of an engine, in a player that it starts or in the editor."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from queue import Empty
from typing import Any

import numpy as np

from algorithm.adapters.adapter import EnvironmentCrashed, EnvironmentStartError, SimulatorError
from algorithm.adapters.curriculum import Value
from algorithm.adapters.scenes.player import PlayerProcess
from algorithm.adapters.scenes.scene import SceneTick

POLL_SECONDS = 0.2  # seconds between two checks of the player's process


class PlayerQuit(EnvironmentCrashed):
    """An error for a player that quit: its window was closed, or Stop was pressed in the editor."""


class SceneClient(AbstractContextManager):
    """A client of one scene, whose constructor starts the player, or waits for the editor.

    Any failure ends the player and raises EnvironmentCrashed with one line, after which the client cannot be used.
    """

    def __init__(self, program: Path | None, limit: float):
        """Set the name and the limit of a client; a subclass then starts the player.

        Args:
            program: Player; None for the editor.
            limit: Seconds within which the player must answer each message.
        """
        self.name = f"the player {program.name}" if program else "the editor"
        self._process: PlayerProcess | None = None
        self._limit = limit

    @abstractmethod
    def reset(self) -> SceneTick:
        """Reset all episodes, and return the first tick in which an agent requests a decision.

        Raises:
            EnvironmentCrashed: If the player fails.
        """

    @abstractmethod
    def step(self, actions: Mapping[str, np.ndarray], parameters: Mapping[str, Value]) -> SceneTick:
        """Execute actions {behavior: [n, size]} and return the next tick.

        Args:
            actions: For the agents that await a decision, in the order of the last tick; continuous dimensions in
                [-1, 1], then the index of each discrete branch.
            parameters: Environment parameters that have changed.

        Raises:
            EnvironmentCrashed: If the player fails.
        """

    @abstractmethod
    def disconnect(self) -> None:
        """Send the player a quit if it waits, and free the port. A second call does nothing."""

    @abstractmethod
    def poll(self, seconds: float) -> Any:
        """Return the player's next message. Raises queue.Empty if none arrives in time."""

    @property
    def is_disconnected(self) -> bool:
        """Return whether the player has broken the connection."""
        return False

    def close(self, at_once: bool = False) -> None:
        """End the scene, and the player with all its processes. A second call does nothing.

        The player has some seconds to quit, unless it is killed `at_once`.
        """
        self.disconnect()
        if self._process:
            self._process.close(at_once)

    def __exit__(self, *_: object) -> None:
        self.close()

    def receive(self, limit: float | None, failure: str) -> Any:
        """Return the player's next message; `failure` is the predicate for a player that takes longer than `limit`."""
        start = time.monotonic()
        while True:
            try:
                return self.poll(POLL_SECONDS)
            except Empty:
                if exit_reason := self._process.get_exit_reason() if self._process else None:
                    raise EnvironmentCrashed(exit_reason) from None
                if self.is_disconnected:
                    raise EnvironmentCrashed("broke the connection") from None
                if limit is not None and time.monotonic() - start >= limit:
                    raise EnvironmentCrashed(f"{failure} within {limit:g} s") from None

    @contextmanager
    def convert_errors(self) -> Iterator[None]:
        """Close the client on any error, and raise the error as one line that names the player."""
        try:
            yield
        except SimulatorError as error:
            crashed = isinstance(error, EnvironmentCrashed) and not isinstance(error, PlayerQuit)
            last_output = self._process.last_lines() if self._process and crashed else ""
            self.close(at_once=not isinstance(error, PlayerQuit))
            raise type(error)(f"{self.name} {error}{last_output}") from error
        except Exception as error:
            last_output = self._process.last_lines() if self._process else ""
            self.close(at_once=True)
            raise EnvironmentCrashed(
                f"{self.name} sent a message that cannot be read: {type(error).__name__}: {error}{last_output}"
            ) from error
        except BaseException:
            self.close(at_once=True)
            raise

    @contextmanager
    def convert_start_errors(self) -> Iterator[None]:
        """Close the client on any error, and raise EnvironmentStartError with one line that names the player."""
        try:
            with self.convert_errors():
                yield
        except EnvironmentCrashed as error:
            raise EnvironmentStartError(str(error)) from error
