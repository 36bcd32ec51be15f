"""The goal of a run: a mean return that training episodes reach, and that further episodes confirm."""

from __future__ import annotations

from collections.abc import Iterable

from algorithm.training.evaluations import Results
from algorithm.training.evaluator import EvaluationResult
from algorithm.training.progress import WINDOW, History, RecentEpisodes, compute_mean


class GoalCheck:
    """A check whether the last training episodes of every role or team reach the goal, and others confirm it.

    A confirmation that fails makes the next one longer by the length of the first. If all had the same length, one of
    them would confirm a policy that is worse than the goal, sooner or later. The probability that any of these
    confirmations does is bounded, since it decreases exponentially from one to the next.

    Args:
        history: the recent episodes.
        goal: the mean return to reach; None: it is never reached.
        episodes: the number of evaluation episodes of the first confirmation.

    Attributes:
        is_in_trial: whether the goal was reached, and the next training episodes confirm it.
    """

    def __init__(self, history: History, goal: float | None, episodes: int):
        self.history, self.goal, self.episodes = history, goal, episodes
        self.is_in_trial = False

    @property
    def confirmation_episodes(self) -> int:
        """Return the number of evaluation episodes of each role that the next confirmation needs."""
        return self.episodes * self._length

    def is_met(self) -> bool:
        """Return whether the last training episodes reach the goal, and no confirmation waits for more of them."""
        recent = self.history.collect_recent().values()
        if self.goal is None or any(each.awaited > 0 for each in recent):
            return False
        return bool(recent) and all(each.is_full for each in recent) and self._is_reached_by(recent)

    def confirm(self, results: Results) -> bool:
        """Return whether the evaluation episodes of a confirmation reach the goal.

        If not, the next one waits until every role or team has ended as many new training episodes.
        """
        if self._is_reached_by(results.values()):
            return True
        for each in self.history.collect_recent().values():
            each.awaited = self.confirmation_episodes
        self.history.failed_confirmations += 1
        return False

    def start_trial(self) -> None:
        """Let the next training episodes confirm the goal."""
        self.is_in_trial = True
        for each in self.history.collect_recent().values():
            each.trial = []

    def confirm_by_trial(self) -> bool:
        """Return whether the training episodes of the trial reach the goal, once every role or team has ended enough.

        The trial then ends.
        """
        trials = []
        for each in self.history.collect_recent().values():
            each.trial = [] if each.trial is None else each.trial  # a role may have appeared since
            trials.append(each.trial)
        if self.goal is None or any(len(trial) < WINDOW * self._length for trial in trials):
            return False
        self.is_in_trial = False
        for each in self.history.collect_recent().values():
            each.trial = None
        is_confirmed = all(compute_mean(trial) >= self.goal for trial in trials)
        self.history.failed_confirmations += not is_confirmed
        return is_confirmed

    @property
    def _length(self) -> int:
        """Return the length of the next confirmation, in lengths of the first."""
        return 1 + self.history.failed_confirmations

    def _is_reached_by(self, episodes: Iterable[EvaluationResult | RecentEpisodes]) -> bool:
        """Return whether the mean returns of the episodes of every role or team reach the goal."""
        return self.goal is not None and all(each.mean >= self.goal for each in episodes)
