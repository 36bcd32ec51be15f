"""The limits of a run, its intervals, and its goal: a mean return that further episodes confirm."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from algorithm.training.evaluator import EvaluationResult, Results
from algorithm.training.progress import WINDOW, Counters, History, RecentEpisodes, compute_mean


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of a run, its intervals and its goal; None is never.

    Attributes:
        max_step: env steps at which the run ends.
        max_iter: iterations at which the run ends.
        log_every: env steps between rows of metrics.
        save_every: env steps between checkpoints.
        evaluate_every: env steps between evaluations.
        goal: mean return at which the run ends.
        evaluation_episodes: number of episodes of an evaluation, of each role.
        pause_at: env steps at which training pauses, after an evaluation; the run then continues from its checkpoint.
    """

    max_step: int | None = None
    max_iter: int | None = None
    log_every: int
    save_every: int | None = None
    evaluate_every: int | None = None
    goal: float | None = None
    evaluation_episodes: int
    pause_at: int | None = None

    @property
    def evaluates(self) -> bool:
        """Return whether there are evaluations; then there is one at the end of the run, too."""
        return any(limit is not None for limit in (self.goal, self.evaluate_every, self.pause_at))

    @property
    def last_step(self) -> int | None:
        """Return the env steps at which the run ends or pauses; None without such a limit."""
        limits = [limit for limit in (self.max_step, self.pause_at) if limit is not None]
        return min(limits, default=None)

    def are_reached(self, counters: Counters) -> bool:
        """Return whether the run has made `max_step` env steps or `max_iter` iterations, or pauses."""
        max_step, max_iter = self.last_step, self.max_iter
        return (max_step is not None and counters.env_steps >= max_step) or (
            max_iter is not None and counters.iterations >= max_iter
        )

    def list_reached(self, counters: Counters) -> list[str]:
        """Return a line for each limit, but a pause, that a run which is about to start has reached before."""
        units = {"max_step": "env steps", "max_iter": "iterations"}
        return [
            f"the run has ended already, after {count:,} {units[name]}: base_config.{name} above {limit:,} continues it"
            for name, (count, limit) in self._compare(counters).items()
            if count >= limit
        ]

    def fraction_done(self, counters: Counters) -> float | None:
        """Return the fraction of the run that is done, by `max_step` or `max_iter`, whichever ends it first."""
        return max((count / limit for count, limit in self._compare(counters).values()), default=None)

    def _compare(self, counters: Counters) -> dict[str, tuple[int, int]]:
        """Return the count and the limit of each of `max_step` and `max_iter` that is a limit of the run."""
        limits = {"max_step": (counters.env_steps, self.max_step), "max_iter": (counters.iterations, self.max_iter)}
        return {name: (count, limit) for name, (count, limit) in limits.items() if limit is not None}


class Intervals:
    """Actions with the interval of each in env steps, which end at multiples of it.

    Args:
        actions: interval and action, in the order in which they are run; without an interval it is never run.
        env_steps: env steps of the run; the intervals that end there have been run.

    Attributes:
        next_due: the env steps at which the next interval ends.
    """

    def __init__(self, actions: Sequence[tuple[int | None, Callable[[], object]]], env_steps: int):
        self._actions = [(every, action) for every, action in actions if every]
        self._set_last(env_steps)

    def run(self, env_steps: int) -> None:
        """Run the actions whose intervals have ended since the last call, each once."""
        if env_steps < self.next_due:
            return
        for every, action in self._actions:
            if env_steps // every > self._last // every:
                action()
        self._set_last(env_steps)

    def _set_last(self, env_steps: int) -> None:
        self._last = env_steps
        self.next_due = min((env_steps // every + 1) * every for every, _ in self._actions)


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
