"""The goal of a run: a mean return that training episodes reach, and further training episodes confirm if needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from algorithm.training.evaluator import EvaluationResult
from algorithm.training.progress import WINDOW, History, RecentEpisodes


class GoalCheck:
    """A check whether the last training episodes of every role or team reach the goal.

    Args:
        history: the recent episodes.
        goal: the mean return to reach; None: it is never reached.
    """

    def __init__(self, history: History, goal: float | None):
        self.history, self.goal = history, goal
        # The number of training episodes of each role when a confirmation by training episodes began.
        self._trial_counts: Mapping[str, int] | None = None

    @property
    def is_in_trial(self) -> bool:
        """Return whether the goal was reached, and the next training episodes confirm it."""
        return self._trial_counts is not None

    def is_met(self) -> bool:
        """Return whether the last training episodes reach the goal."""
        if self.goal is None or self.history.episodes_until_check > 0:
            return False
        recent = self.history.collect_recent().values()
        return bool(recent) and all(each.is_full for each in recent) and self.is_reached_by(recent)

    def is_reached_by(self, episodes: Iterable[EvaluationResult | RecentEpisodes]) -> bool:
        """Return whether the mean returns of the episodes of every role or team reach the goal."""
        return self.goal is not None and all(each.mean >= self.goal for each in episodes)

    def start_trial(self) -> None:
        """Let the next training episodes confirm the goal."""
        self._trial_counts = {name: recent.count for name, recent in self.history.collect_recent().items()}

    def confirm_by_trial(self) -> bool:
        """Return whether the episodes of the trial reach the goal, once every role or team has played `WINDOW` of them.

        The trial then ends.
        """
        assert self._trial_counts is not None
        recent = self.history.collect_recent()
        if any(recent[name].count - start < WINDOW for name, start in self._trial_counts.items()):
            return False
        self._trial_counts = None
        return self.is_met()
