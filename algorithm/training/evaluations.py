"""Evaluations during a run: played at once, or by another process while training continues."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from algorithm.training.evaluator import EvaluationResult
from algorithm.training.progress import WINDOW

Results = Mapping[str, EvaluationResult]  # by role or team


class Evaluations(ABC):
    """A way of playing evaluation episodes. Both methods raise SimulatorError if evaluation is not possible.

    Attributes:
        is_concurrent: whether training continues between `start` and the result, so that the weights have changed when
            it is received.
    """

    is_concurrent: bool

    @abstractmethod
    def start(self, episodes: int) -> None:
        """Start to play at least `episodes` episodes of each role with the present weights."""

    @abstractmethod
    def receive(self, timeout: float) -> Results | None:
        """Return the results of the evaluation that was started; None if `timeout` seconds pass without them."""


class ImmediateEvaluations(Evaluations):
    """Evaluations that are played in this process, when they start.

    Args:
        play: plays the given number of episodes of each role.
    """

    is_concurrent = False

    def __init__(self, play: Callable[[int], Results]):
        self._play = play
        self._results: Results | None = None

    def start(self, episodes: int) -> None:
        self._results = self._play(episodes)

    def receive(self, timeout: float) -> Results | None:
        return self._results


@dataclass(frozen=True, kw_only=True)
class EvaluatedVersion:
    """The weights that an evaluation has started with.

    Attributes:
        env_steps: env steps of the run at that time.
        checkpoint: the checkpoint with these weights; None if they are still the present ones when the results are
            received, or if it could not be written.
        confirms: whether the results confirm that the goal is reached.
    """

    env_steps: int
    checkpoint: Any
    confirms: bool


class EvaluationQueue:
    """The evaluation of a run that has started, and the one that is due after it.

    An evaluation that is due while another one has not ended starts after it, with the weights of that time.

    Args:
        evaluations: plays the episodes.
        save: writes a checkpoint and returns it; None if it could not be written.

    Attributes:
        version: the weights of the evaluation that has started; None if there is none.
    """

    def __init__(self, evaluations: Evaluations, save: Callable[[], Any]):
        self.evaluations, self._save = evaluations, save
        self.version: EvaluatedVersion | None = None
        self._is_due = self._confirms = False
        self._last_start = -1  # env steps at which the last evaluation started

    @property
    def is_busy(self) -> bool:
        """Return whether an evaluation has started or is due."""
        return self._is_due or self.version is not None

    @property
    def is_waiting(self) -> bool:
        """Return whether an evaluation is due that has not started, or was interrupted, and confirms nothing."""
        return self._is_due and not self._confirms

    @property
    def is_confirming(self) -> bool:
        """Return whether the evaluation that has started, or the one that is due, confirms the goal."""
        return self._confirms or (self.version is not None and self.version.confirms)

    def request(self, env_steps: int, *, confirms: bool) -> None:
        """Let an evaluation be due, unless the last one started at the same env steps and this one confirms nothing."""
        if confirms or env_steps != self._last_start:
            self._is_due, self._confirms = True, self._confirms or confirms

    def cancel(self) -> None:
        """Let no evaluation be due."""
        self._is_due = self._confirms = False

    def advance(self, env_steps: int, timeout: float) -> tuple[EvaluatedVersion, Results] | None:
        """Start the evaluation that is due, if no other one has started.

        Returns:
            The results of the evaluation that has started; None without one, or if `timeout` seconds pass without them.

        Raises:
            SimulatorError: evaluation is not possible.
        """
        if self.version is None and self._is_due:
            self._start(env_steps)
        if self.version is None or (results := self.evaluations.receive(timeout)) is None:
            return None
        version, self.version = self.version, None
        return version, {name: replace(result, env_steps=version.env_steps) for name, result in results.items()}

    def _start(self, env_steps: int) -> None:
        checkpoint = self._save() if self.evaluations.is_concurrent else None
        self.evaluations.start(WINDOW)
        self.version = EvaluatedVersion(env_steps=env_steps, checkpoint=checkpoint, confirms=self._confirms)
        self._last_start = env_steps
        self.cancel()
