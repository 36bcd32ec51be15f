"""Evaluations during a run: played at once, or by another process while training continues."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from algorithm.training.evaluator import EvaluationResult, Evaluator

Results = Mapping[str, EvaluationResult]  # by role or team


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of an evaluation.

    Attributes:
        results: the results that are reported.
        confirmation: the results that decide whether the goal is confirmed; None if the evaluation does not confirm it.
    """

    results: Results
    confirmation: Results | None = None

    def add_env_steps(self, env_steps: int) -> Outcome:
        """Return the outcome with the env steps of the run at which the evaluation started."""
        return Outcome(
            results=_add_env_steps(self.results, env_steps),
            confirmation=self.confirmation and _add_env_steps(self.confirmation, env_steps),
        )


@dataclass(frozen=True, kw_only=True)
class EpisodePlan:
    """The episodes of an evaluation.

    The episodes that confirm a goal have other seeds than those that are reported. If they were reported, the mean
    would be too high: it is known only since it reached the goal.

    Attributes:
        episodes: the least number of reported episodes of each role.
        seed: seeds their environments and sampled actions.
        confirmation_episodes: the least number of episodes of each role that confirm the goal; 0: none.
        confirmation_seed: seeds theirs.
    """

    episodes: int
    seed: int
    confirmation_episodes: int
    confirmation_seed: int

    def play(self, evaluator: Evaluator) -> Outcome:
        """Play the episodes."""
        confirmation = None
        if self.confirmation_episodes:
            confirmation = evaluator.play(self.confirmation_episodes, self.confirmation_seed)
        return Outcome(results=evaluator.play(self.episodes, self.seed), confirmation=confirmation)


class Evaluations(ABC):
    """A way of playing evaluation episodes. Both methods raise SimulatorError if evaluation is not possible.

    Attributes:
        is_concurrent: whether training continues between `start` and the result, so that the weights have changed when
            it is received.
    """

    is_concurrent: bool

    @abstractmethod
    def start(self, confirmation_episodes: int) -> None:
        """Start an evaluation of the present weights; it confirms the goal with this number of episodes; 0: not."""

    @abstractmethod
    def receive(self, timeout: float) -> Outcome | None:
        """Return the outcome of the evaluation that was started; None if `timeout` seconds pass without it."""


class ImmediateEvaluations(Evaluations):
    """Evaluations that are played in this process, when they start.

    Args:
        play: plays an evaluation with the given number of episodes that confirm the goal.
    """

    is_concurrent = False

    def __init__(self, play: Callable[[int], Outcome]):
        self._play = play
        self._outcome: Outcome | None = None

    def start(self, confirmation_episodes: int) -> None:
        self._outcome = self._play(confirmation_episodes)

    def receive(self, timeout: float) -> Outcome | None:
        return self._outcome


@dataclass(frozen=True, kw_only=True)
class EvaluatedVersion:
    """The weights that an evaluation has started with.

    Attributes:
        env_steps: env steps of the run at that time.
        checkpoint: the checkpoint with these weights; None if they are still the present ones when the results are
            received, or if it could not be written.
        confirms: whether the evaluation decides whether the goal is confirmed.
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
        self._is_due, self._confirmation_episodes = False, 0
        self._last_start = -1  # env steps at which the last evaluation started

    @property
    def is_busy(self) -> bool:
        """Return whether an evaluation has started or is due."""
        return self._is_due or self.version is not None

    @property
    def is_waiting(self) -> bool:
        """Return whether an evaluation is due that has not started, or was interrupted, and confirms nothing."""
        return self._is_due and not self._confirmation_episodes

    @property
    def is_confirming(self) -> bool:
        """Return whether the evaluation that has started, or the one that is due, confirms the goal."""
        return self._confirmation_episodes > 0 or (self.version is not None and self.version.confirms)

    def request(self, env_steps: int, confirmation_episodes: int) -> None:
        """Let an evaluation be due, unless the last one started at the same env steps and this one confirms nothing."""
        if confirmation_episodes or env_steps != self._last_start:
            self._is_due = True
            self._confirmation_episodes = max(self._confirmation_episodes, confirmation_episodes)

    def cancel(self) -> None:
        """Let no evaluation be due."""
        self._is_due, self._confirmation_episodes = False, 0

    def advance(self, env_steps: int, timeout: float) -> tuple[EvaluatedVersion, Outcome] | None:
        """Start the evaluation that is due, if no other one has started.

        Returns:
            The outcome of the evaluation that has started; None without one, or if `timeout` seconds pass without it.

        Raises:
            SimulatorError: evaluation is not possible.
        """
        if self.version is None and self._is_due:
            self._start(env_steps)
        if self.version is None or (outcome := self.evaluations.receive(timeout)) is None:
            return None
        version, self.version = self.version, None
        return version, outcome.add_env_steps(version.env_steps)

    def _start(self, env_steps: int) -> None:
        checkpoint = self._save() if self.evaluations.is_concurrent else None
        self.evaluations.start(self._confirmation_episodes)
        confirms = self._confirmation_episodes > 0
        self.version = EvaluatedVersion(env_steps=env_steps, checkpoint=checkpoint, confirms=confirms)
        self._last_start = env_steps
        self.cancel()


def _add_env_steps(results: Results, env_steps: int) -> Results:
    return {name: replace(result, env_steps=env_steps) for name, result in results.items()}
